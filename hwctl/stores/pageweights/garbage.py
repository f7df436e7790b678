"""What eviction may begin with: artifacts that are proven nobody's, as reclaim-stale proves it.

Owns how long a verdict stands. Each access of the cache's own program waits for the eviction lock, so the
proof is made before it is taken; under it the files are only looked at again by their stats.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hwctl.errors import from_os_error
from hwctl.fs.openfiles import RecentOpenFiles
from hwctl.fs.walk import Inode, inode_of
from hwctl.stores.base import Death, StalePolicy, State
from hwctl.stores.pageweights import layout, staleness
from hwctl.stores.pageweights.grouping import names_in_quarantine
from hwctl.stores.pageweights.roots import Root
from hwctl.stores.pageweights.survey import Survey

_Facts = Mapping[str, tuple[Inode, int, int, int]]
"""By name what a stat tells of its file; nothing of what is not there."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A page that eviction came to and left alone, and why; ``bad`` when its locator cannot be trusted."""

    prefix: str
    reason: str
    bad: bool = False


_Verdict = tuple[str, ...] | Passed | None


class Garbage:
    """Verdicts on the artifacts that no page may own, each good for as long as no file of its prefix changes.

    ``names`` of a question are those of its prefix, without its lock: the eviction itself makes that one.
    """

    def __init__(self, root: Root) -> None:
        self._root = root
        self._open_files = RecentOpenFiles()
        self._quarantine = names_in_quarantine()
        self._made: dict[tuple[str, str], tuple[_Facts, _Verdict]] = {}

    def judge(self, prefix: str, key: str, names: Sequence[str]) -> _Verdict:
        """The names of an artifact that is proven nobody's; None for a page's."""
        facts = self._facts((layout.locator_name(prefix), *names))
        made = self._made.get((prefix, key))
        if made is not None and made[0] == facts:
            return made[1]
        verdict, lasting = self._judged(prefix, key, names)
        if lasting:
            self._made[prefix, key] = (facts, verdict)
        return verdict

    def _judged(self, prefix: str, key: str, names: Sequence[str]) -> tuple[_Verdict, bool]:
        """The verdict, and whether it lasts: a holder may be gone in a moment, and no file tells of it."""
        found = Survey(self._root, None).pair(prefix, key)
        if found is None or found.state in (State.READY, State.INCOMPLETE):
            return None, True
        if found.state is not State.ORPHAN:
            return Passed(prefix, str(found.reason), bad=True), True
        seen = staleness.Seen(self._open_files, self._quarantine, lambda _fd, _prefix: names)
        verdict = staleness.judge(self._root, found, StalePolicy(), seen)
        if verdict.death is not Death.PROVEN or verdict.keeps:
            return Passed(prefix, "; ".join(verdict.evidence)), verdict.death is not Death.LIVE
        return layout.pair_of(prefix, key), True

    def _facts(self, names: Sequence[str]) -> _Facts:
        facts = {}
        for name in names:
            try:
                st = os.stat(name, dir_fd=self._root.fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as exc:
                raise from_os_error(exc, f"cannot look at {name}", self._root.path / name) from exc
            facts[name] = (inode_of(st), st.st_size, st.st_mtime_ns, st.st_ctime_ns)
        return facts
