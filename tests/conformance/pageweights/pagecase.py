"""A conformance case of the page cache: how it is built, asked and read back.

``CASES`` is filled by the modules ``cases_*``, which register themselves on import.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pagegen import EPOCH_NS, STEP_NS, Blob, Names, Page, base_pages, digest, put, store

EITHER = ("hit", "refused")


def other_hex(text: str) -> str:
    """Another well-formed digest."""
    return text[1:] + text[0] if text[0] != text[1] else "0" * 63 + "1"


@dataclass
class Case:
    id: str
    about: str
    op: str  # load | publish | evict
    page: int
    build: Callable[[Ctx], Any]
    needs: tuple[str, ...] = ()  # "root": the case can only be built by root
    base: bool = True  # start from the base cache (else an empty root)
    allow: tuple[str, ...] = ()  # verdicts hwctl may give; empty = the original's verdict
    why: str = ""  # why hwctl may or must differ, or what to take care of
    pages: dict[str, list[list[str]]] = field(default_factory=dict)
    # ^ with a budget: per verdict, the sets of complete pages that may remain;
    #   empty = what the original leaves


CASES: dict[str, Case] = {}


def case(
    id: str,
    about: str,
    *,
    op: str = "load",
    page: int = 0,
    needs: tuple[str, ...] = (),
    base: bool = True,
    allow: tuple[str, ...] = (),
    why: str = "",
    pages: dict[str, list[str]] | None = None,
):
    def register(build):
        assert id not in CASES, id
        sets = {
            verdict: [re.findall(r"P\d+", text) for text in texts] for verdict, texts in (pages or {}).items()
        }
        CASES[id] = Case(id, about, op, page, build, needs, base, allow, why, sets)
        return build

    return register


@dataclass
class Ctx:
    """One case's private folder: root (the cache) and outside (a sibling)."""

    home: Path
    case: Case | None = None
    pages: list[Page] = field(default_factory=base_pages)
    names: list[Names] = field(default_factory=list)
    authority: dict[str, Any] = field(default_factory=dict)
    offer: dict[str, Blob] = field(default_factory=dict)
    budget: int | None = None
    held: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root = self.home / "root"
        self.outside = self.home / "outside"

    # -- building
    def start(self) -> None:
        self.home.mkdir(mode=0o700, parents=True)
        self.outside.mkdir(mode=0o700)
        self.root.mkdir(mode=0o700)
        if self.case is None or self.case.base:
            self.fill(self.pages)
        if self.case is not None and self.case.op != "evict" and self.case.base:
            self.ask(self.case.page)

    def fill(self, pages: list[Page]) -> None:
        self.pages = pages
        for i, page in enumerate(pages):
            self.names.append(store(self.root, page, clock_ns=EPOCH_NS + i * STEP_NS))
        put(self.root / ".eviction.lock", b"", 0o600)

    def ask(self, index: int) -> None:
        """Which authority is presented, and which tensors a builder would give."""
        self.authority = dict(self.pages[index].authority)
        self.offer = dict(self.pages[index].blobs)

    def apply(self) -> None:
        self.start()
        if self.case is not None:
            self.case.build(self)

    # -- bending
    def redo(self, index: int, **bends: Any) -> Names:
        """Replace a base page by a bent one whose later links are consistent."""
        old = self.names[index]
        clock = old.locator.stat().st_mtime_ns
        for path in (old.locator, old.receipt, old.artifact):
            path.unlink()
        self.names[index] = store(self.root, self.pages[index], clock_ns=clock, **bends)
        return self.names[index]

    def rewrite(self, path: Path, data: bytes) -> None:
        """Other bytes, same mode and clock, no digest repaired."""
        status = path.stat()
        put(path, data, status.st_mode & 0o7777)
        os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))

    def flip(self, path: Path, offset: int, mask: int = 1) -> None:
        data = bytearray(path.read_bytes())
        data[offset] ^= mask
        self.rewrite(path, bytes(data))

    def move_out(self, path: Path, name: str = "moved") -> Path:
        target = self.outside / name
        os.rename(path, target)
        return target

    def hold(self, name: str, shared: bool = False) -> None:
        """Keep a flock from this process until close()."""
        fd = os.open(self.root / name, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        self.held.append(fd)

    def close(self) -> None:
        while self.held:
            os.close(self.held.pop())

    def size(self, index: int) -> int:
        return self.names[index].artifact.stat().st_size

    # -- reading back
    def label(self, name: str) -> str:
        """A file name with page labels for digests: <P0>, <P0.key>, <A> = the asked authority."""
        for names, page in zip(self.names, self.pages, strict=False):
            name = name.replace(names.key, f"<{page.label}.key>")
        for page in self.pages:
            name = name.replace(page.prefix, f"<{page.label}>")
        if self.authority:
            name = name.replace(digest(self.authority), "<A>")
        return re.sub(r"[0-9a-f]{64}", lambda m: f"<{m[0][:8]}>", name)

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """What lies below the case's folder, by labelled path."""
        found: dict[str, dict[str, Any]] = {}
        for top in (self.root, self.outside):
            for here, folders, files in os.walk(top):
                for leaf in sorted(folders + files):
                    path = Path(here) / leaf
                    status = path.lstat()
                    entry: dict[str, Any] = {"mode": f"{status.st_mode & 0o7777:04o}"}
                    if path.is_symlink():
                        entry["kind"], entry["mode"] = "link", "-"
                        entry["to"] = os.path.basename(os.readlink(path))
                    elif path.is_dir():
                        entry["kind"] = "folder"
                    elif path.is_file():
                        entry["kind"], entry["bytes"] = "file", status.st_size
                        entry["mtime_ns"] = status.st_mtime_ns
                        try:
                            entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
                        except PermissionError:
                            entry["sha256"] = "unreadable"
                    else:
                        entry["kind"] = "special"
                    where = path.relative_to(self.home)
                    shown = "/".join(self.label(part) for part in where.parts)
                    found[shown.removeprefix("root/")] = entry
        if self.root.exists():
            found["."] = {"kind": "folder", "mode": f"{self.root.stat().st_mode & 0o7777:04o}"}
        return found


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[str]]:
    def still(entry: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in entry.items() if k != "mtime_ns"}

    both = [n for n in before if n in after]
    out = {
        "added": sorted(n for n in after if n not in before),
        "removed": sorted(n for n in before if n not in after),
        "changed": sorted(n for n in both if still(before[n]) != still(after[n])),
        "touched": sorted(n for n in both if still(before[n]) == still(after[n]) and before[n] != after[n]),
    }
    return {k: v for k, v in out.items() if v}


def complete_pages(ctx: Ctx) -> list[str]:
    """Labels of pages whose locator, receipt and artifact names are all present."""
    return [
        p.label
        for p, n in zip(ctx.pages, ctx.names, strict=False)
        if all(os.path.lexists(x) for x in (n.locator, n.receipt, n.artifact))
    ]
