"""The names of a folder by the prefix that they carry, so that a run over many entries lists it once.

Owns when a listing is too old to be used: as soon as the folder has changed. What the names mean is
``layout``'s.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping

from hwctl.stores.pageweights.layout import parse_name, quarantined_prefix

_TICK_NS = 20_000_000
"""Stamps go by ticks of the kernel: a folder that changes twice within one bears the same stamp."""

_Stamp = tuple[int, int, int, int]


class Names:
    """The names in one folder by prefix, listed again only when the folder has changed since."""

    def __init__(self, prefix_of: Callable[[str], str | None]) -> None:
        self._prefix_of = prefix_of
        self._stamp: _Stamp | None = None
        self._groups: Mapping[str, list[str]] = {}

    def of(self, dir_fd: int, prefix: str) -> Iterable[str]:
        """The names that carry a prefix, sorted. Raises OSError when the folder cannot be listed."""
        st = os.fstat(dir_fd)
        stamp = (st.st_dev, st.st_ino, st.st_mtime_ns, st.st_ctime_ns)
        if stamp != self._stamp:
            settled = time.time_ns() - max(st.st_mtime_ns, st.st_ctime_ns) > _TICK_NS
            self._groups = self._grouped(os.listdir(dir_fd))
            self._stamp = stamp if settled else None
        return self._groups.get(prefix, ())

    def _grouped(self, names: Iterable[str]) -> Mapping[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for name in sorted(names):
            prefix = self._prefix_of(name)
            if prefix is not None:
                groups.setdefault(prefix, []).append(name)
        return groups


def names_in_root() -> Names:
    return Names(lambda name: parse_name(name).prefix)


def names_in_quarantine() -> Names:
    return Names(quarantined_prefix)
