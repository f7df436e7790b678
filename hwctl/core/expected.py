"""What a caller expects to find, and which entries of a store that means.

An identity and an authority name entries that need not even be there: their places are computed, not
searched. A source object is looked up in what the pages record about themselves. What a kt-int8 tree has to
fit is handed to its check as it is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hwctl.core.verify import CHECKED_STATES, Subject
from hwctl.errors import Damaged, Finding, NotFound, Refused, Usage, from_os_error
from hwctl.fs.digest import sha256_fd
from hwctl.fs.paths import NotRegular, kind_of, open_regular, read_document, real
from hwctl.stores.base import Advance, Family, Match, Store, silent
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.identity_document import read_identity
from hwctl.stores.hostweights.layout import ARTIFACTS
from hwctl.stores.ktint8.expect import Expectation
from hwctl.stores.locate import entry, locate
from hwctl.stores.pageweights.authority import Authority, Source, parse_authority
from hwctl.stores.pageweights.layout import locator_name
from hwctl.weights.checkpoint_index import parse_object
from hwctl.weights.moe.config import CONFIG, read_config

_FILE_LIMIT = 64 << 20


def read_identity_file(path: Path) -> Identity:
    """The identity in a file the caller wrote. Raises Usage with all that is wrong with it."""
    found = read_identity(_read(path), str(path))
    if isinstance(found, Identity):
        return found
    raise _reject("identity", path, found)


def read_authority_file(path: Path) -> Authority:
    """The authority in a file the caller wrote. Raises Usage with all that is wrong with it."""
    found = parse_authority(_read(path), str(path))
    if isinstance(found, Authority):
        return found
    raise _reject("authority", path, found)


def _read(path: Path) -> bytes:
    try:
        return read_document(real(path), limit=_FILE_LIMIT).data
    except NotRegular as exc:
        raise Usage(f"{path} is a {exc.kind}, not a regular file", path=path) from exc
    except OSError as exc:
        raise Usage(f"cannot read {path}: {exc.strerror or exc}", path=path) from exc


def _reject(what: str, path: Path, findings: tuple[Finding, ...]) -> Usage:
    reasons = "; ".join(finding.message for finding in findings[:5])
    return Usage(f"{path} is not a sound {what}: {reasons}", path=path)


def of_identity(match: Match, store: Store, identity: Identity) -> Subject:
    """The artifact of an identity in the host weight store that ``match`` is."""
    _require_root(match, Family.HOSTWEIGHTS, "--identity")
    place = locate(match.root / ARTIFACTS / identity.key, Family.HOSTWEIGHTS)
    return _subject(store, place, identity)


def of_authority(match: Match, store: Store, authority: Authority) -> Subject:
    """The page of an authority in the cache that ``match`` is, or the page that it is, which must be of that
    authority."""
    _require_cache(match, "--authority")
    if match.key is not None:
        return _subject(store, match, authority)
    place = locate(match.root / locator_name(authority.prefix), Family.PAGEWEIGHTS)
    return _subject(store, place, authority)


def of_source(match: Match, store: Store, source: Source) -> Iterator[Subject]:
    """The pages in the cache ``match`` that were made from a source object, or the page that it is, which
    must be. Raises NotFound for a cache without any."""
    _require_cache(match, "--source")
    if match.key is not None:
        yield _subject(store, match, source)
        return
    found = touched = False
    for artifact in store.scan():
        detail = artifact.detail
        if artifact.state not in CHECKED_STATES or detail.get("source_sha256") != source.sha256:
            continue
        # A touch of the source makes it another authority, whose pages are others.
        if detail.get("source_identity") == list(source.identity):
            found = True
            yield Subject(store, artifact, expected=source)
        else:
            touched = True
    if not found:
        words = "; those of the same bytes were made before it was touched" if touched else ""
        raise NotFound(f"holds no page made from that source object{words}", path=match.root)


def measure(path: Path, advance: Advance = silent) -> Source:
    """A source object as it lies on disk, links followed; it is read once, for its digest."""
    try:
        fd, st = open_regular(real(path))
        try:
            return Source.measured(sha256_fd(fd, st.st_size, advance=advance), st)
        finally:
            os.close(fd)
    except FileNotFoundError as exc:
        raise Usage(f"the source object {path} does not exist", path=path) from exc
    except NotRegular as exc:
        message = f"the source object {path} is a {exc.kind}, not a regular file"
        raise Refused(message, path=path) from exc
    except OSError as exc:
        raise from_os_error(exc, f"cannot read the source object {path}", path) from exc


def of_checkpoint(path: Path, parts: int | None) -> Expectation:
    """The shape and layers that a model's tree has, from its config.json alone; ``parts`` None leaves open.

    Raises Usage when there is none to be read, Unsupported for a family without such a tree.
    """
    config = _beside(path)
    parsed = parse_object(_read(config), str(config), "config-malformed")
    if isinstance(parsed, Finding):
        raise _reject("config.json", config, (parsed,))
    try:
        model = read_config(parsed)
    except Damaged as exc:
        raise _reject("config.json of a model with experts", config, exc.findings) from exc
    return Expectation(model.layers, parts, model.experts, model.hidden, model.intermediate)


def _beside(path: Path) -> Path:
    """The config.json of the checkpoint that a folder is, or that a file lies in."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise Usage(f"the checkpoint {path} does not exist", path=path) from exc
    except OSError as exc:
        raise Usage(f"cannot look at the checkpoint {path}: {exc.strerror}", path=path) from exc
    if stat.S_ISDIR(mode):
        return path / CONFIG
    if stat.S_ISREG(mode):
        return path.parent / CONFIG
    raise Usage(f"{path} is a {kind_of(mode)}, no checkpoint", path=path)


def _subject(store: Store, place: Match, expected: object) -> Subject:
    artifact = entry(store, place)
    assert artifact is not None
    return Subject(store, artifact, expected=expected)


def _require_cache(match: Match, option: str) -> None:
    """A page cache, or an entry of one."""
    if match.family is not Family.PAGEWEIGHTS:
        message = f"{option} needs PATH to be a page cache or a page of one; {match.path} is neither"
        raise Usage(message, path=match.path)


def _require_root(match: Match, family: Family, option: str) -> None:
    if match.family is not family or match.key is not None:
        raise Usage(f"{option} needs PATH to be a {family} store; {match.path} is not", path=match.path)
