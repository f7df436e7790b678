"""On which NUMA nodes the pages of a file in memory lie (PER-03), without reading them.

With one node there is nothing to find out. With several, the pages that exist are mapped, which does not
touch what they hold, and the kernel's own count is read from ``/proc/self/numa_maps``.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from hwctl.fs.walk import allocated

_NODES = Path("/sys/devices/system/node/online")
_PAGE = mmap.PAGESIZE
_WINDOW = 1 << 30
_MAP_POPULATE = getattr(mmap, "MAP_POPULATE", 0x8000)


def nodes() -> tuple[int, ...]:
    """The machine's nodes; (0,) where the kernel knows of none."""
    try:
        return parse_nodes(_NODES.read_text())
    except OSError:
        return (0,)


def parse_nodes(text: str) -> tuple[int, ...]:
    """A list of nodes such as ``0-1,3`` spelled out; (0,) for one that names none."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found.extend(range(int(first), int(last or first) + 1))
    return tuple(found) or (0,)


def pages_per_node(fd: int, st: os.stat_result) -> Mapping[int, int]:
    """Pages of a regular file on tmpfs by node. Raises OSError where the kernel cannot be asked."""
    known = nodes()
    if len(known) == 1:
        return {known[0]: allocated(st) // _PAGE}
    counts: Counter[int] = Counter()
    for start, end in _extents(fd, st.st_size):
        for offset in range(start, end, _WINDOW):
            counts.update(_mapped(fd, offset, min(_WINDOW, end - offset)))
    return dict(sorted(counts.items()))


def _extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """The stretches that hold data, on page borders: mapping a hole would fill it with memory."""
    position = 0
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start // _PAGE * _PAGE, end
        position = end


def _mapped(fd: int, offset: int, length: int) -> Counter[int]:
    with _mapping(fd, offset, length) as address, open("/proc/self/numa_maps", "rb") as file:
        return parse_numa_maps(file.read(), address)


@contextlib.contextmanager
def _mapping(fd: int, offset: int, length: int) -> Iterator[int]:
    """The address of a read-only mapping with its pages mapped in: Python's own mmap does not tell it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_POPULATE, fd, offset)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "cannot map it")
    try:
        yield address
    finally:
        libc.munmap(address, length)


def parse_numa_maps(raw: bytes, address: int) -> Counter[int]:
    """The node counts (N0=12 N1=7) of the mapping that starts at ``address``."""
    for line in raw.splitlines():
        if int(line.split(b" ", 1)[0], 16) == address:
            return Counter({int(node): int(count) for node, count in re.findall(rb" N(\d+)=(\d+)", line)})
    return Counter()
