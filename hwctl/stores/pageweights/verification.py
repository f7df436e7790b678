"""A read-only check of one entry: under its shared lease where a lock file is, with a second look where not.

Owns how a check meets a living cache. Eviction and republication may pass between two of its opens, so what
was not found, or not found sound, without a lock is looked at once more before it is believed.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import replace

from hwctl.errors import Finding, NotFound, from_os_error
from hwctl.fs.pace import Pacer, Watch
from hwctl.fs.pagecache import Ways
from hwctl.fs.paths import opened_dir
from hwctl.stores.base import Artifact, CheckOptions, Level, Report, State
from hwctl.stores.pageweights import layout
from hwctl.stores.pageweights.authority import Authority, Source
from hwctl.stores.pageweights.checks import Verdict, check_page
from hwctl.stores.pageweights.content import load_for
from hwctl.stores.pageweights.documents import Expected
from hwctl.stores.pageweights.geometry import code_of
from hwctl.stores.pageweights.locking import share_page
from hwctl.stores.pageweights.memory import CHECKED_BLOCK
from hwctl.stores.pageweights.place import Place, leads_nowhere
from hwctl.stores.pageweights.reading import Pace
from hwctl.stores.pageweights.roots import Root

# Small enough that a rate of a megabyte a second comes in sips and not in gulps of seconds.
_PACED_BLOCK = 64 << 10

_UNLEASED = "unleased: the page has no lock file, and a check makes none"
_UNLEASED_RATE = "unleased: at a limited rate the page's lock would be held too long"


def check(root: Root, artifact: Artifact, level: Level, options: CheckOptions, ways: Ways) -> Report:
    """Judge a page or an entry of the quarantine. Nothing is written, no clock moved.

    Raises NotFound when there is no such page, Busy when its lock is not to be had in time, IoFailed.
    """
    if artifact.state is State.QUARANTINED:
        return _check_quarantined(root, artifact, level, options, ways)
    name = layout.parse_name(artifact.path.name)
    if name.prefix is None:
        raise NotFound("is no page of this cache", path=artifact.path)
    if artifact.state in (State.ORPHAN, State.TEMPORARY):
        finding = Finding(artifact.state.value, "belongs to no page: no locator names it", artifact.path.name)
        return Report(artifact, level, (finding,))
    if level is Level.FULL:
        load_for(_dtype(artifact, options))
    with ExitStack() as stack:
        warning = _lease(root, name.prefix, options, stack)
        verdict = _look(root.place, name.prefix, level, options, ways, leased=warning is None)
    locator = layout.locator_name(name.prefix)
    if verdict.missing == (locator,) and leads_nowhere(root.place, locator):
        verdict = Verdict((Finding("unprotected", "is a symbolic link to nothing", locator),))
    if verdict.missing == (locator,):
        raise NotFound("is absent: the cache has no such page", path=artifact.path)
    findings = (*root.findings, *verdict.all_findings())
    return _report(artifact, level, verdict, findings, () if warning is None else (warning,))


def _dtype(artifact: Artifact, options: CheckOptions) -> str | None:
    """The dtype of the weights that are about to be looked at, where somebody knows it already."""
    named = artifact.detail.get("dtype")
    if isinstance(options.expected, Authority):
        named = options.expected.dtype
    return code_of(named) if isinstance(named, str) else None


def _lease(root: Root, prefix: str, options: CheckOptions, stack: ExitStack) -> str | None:
    """Take the page's lock if it can be had without writing; else the warning that it was not."""
    if options.rate is not None:
        return _UNLEASED_RATE
    held = share_page(root.place, prefix, options.wait)
    if held is None:
        return _UNLEASED
    stack.enter_context(held)
    return None


def _look(
    place: Place, prefix: str, level: Level, options: CheckOptions, ways: Ways, *, leased: bool
) -> Verdict:
    expected = options.expected if isinstance(options.expected, Authority | Source) else None
    before = None if leased else _current(place, prefix)
    verdict = check_page(place, prefix, expected, level, pace(options, ways))
    changed = not verdict.hit and not leased and _current(place, prefix) != before
    if verdict.missing or changed:
        verdict = check_page(place, prefix, expected, level, pace(options, ways))
    return verdict


def _current(place: Place, prefix: str) -> tuple[int, int, int] | None:
    """Which locator is current; its clock is left out, since every hit of somebody else moves it."""
    with suppress(OSError):
        st = os.stat(layout.locator_name(prefix), dir_fd=place.dir_fd, follow_symlinks=False)
        return st.st_dev, st.st_ino, st.st_size
    return None


def _check_quarantined(
    root: Root, artifact: Artifact, level: Level, options: CheckOptions, ways: Ways
) -> Report:
    prefix = artifact.key
    expected: Expected = options.expected if isinstance(options.expected, Authority | Source) else None
    try:
        with (
            opened_dir(layout.QUARANTINE, dir_fd=root.fd) as quarantine_fd,
            opened_dir(artifact.path.name, dir_fd=quarantine_fd) as fd,
        ):
            place = Place(fd, root.place.uid)
            verdict = check_page(place, prefix, expected, level, pace(options, ways))
    except FileNotFoundError as exc:
        raise NotFound("is gone from the quarantine", path=artifact.path) from exc
    except OSError as exc:
        raise from_os_error(exc, f"cannot look into {artifact.path}", artifact.path) from exc
    aside = () if options.restoring else (Finding("quarantined", "was set aside", artifact.path.name),)
    findings = (*aside, *verdict.all_findings())
    return replace(_report(artifact, level, verdict, findings, ()), artifact=artifact)


def _report(
    artifact: Artifact,
    level: Level,
    verdict: Verdict,
    findings: tuple[Finding, ...],
    warnings: tuple[str, ...],
) -> Report:
    state = State.INCOMPLETE if verdict.missing else State.DAMAGED if findings else State.READY
    judged = replace(artifact, state=state)
    return Report(judged, level, findings, verdict.checked_bytes, verdict.content, warnings)


def pace(options: CheckOptions, ways: Ways | None) -> Pace:
    """How a check's options make a pass over an artifact go about it."""
    pacer = None if options.rate is None else Pacer(options.rate)
    watch = Watch(pacer, options.deadline, ())

    def on_block(count: int) -> None:
        options.advance(count)
        watch.passed(count)

    return Pace(on_block, CHECKED_BLOCK if pacer is None else _PACED_BLOCK, ways)
