"""One kit a family: how to make what the lifecycle verbs meet, behind one set of names.

A kit makes everything itself, without hwctl, and says which file stands for a lock. Numbers name entries.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import holders
import make_hostweights
import make_ktint8
import make_pageweights

from hwctl.stores.base import Store


class Kit(Protocol):
    """What a test needs to know of a family. ``root`` is the store's root, made by the kit."""

    name: str
    root: Path
    clock_kept: bool
    """Whether hwctl keeps the clock of last use itself."""
    denies: bool
    """Whether new readers can be turned away from an artifact that is leased."""
    leases: bool
    """Whether the family's own programs lock what they use."""

    def open(self) -> Store: ...

    def key(self, number: int) -> str: ...

    def artifact(self, number: int) -> Path:
        """Publish a small sound artifact; the path that names it."""
        ...

    def open_path(self, number: int) -> Path:
        """The path that names an artifact."""
        ...

    def payload(self, path: Path) -> Path:
        """A payload file of an artifact, wherever the artifact lies now."""
        ...

    def leftover(self, number: int) -> Path:
        """What a dead producer leaves; the path that names it."""
        ...

    def at_work(self, number: int) -> AbstractContextManager[Path]:
        """What a living producer is making meanwhile."""
        ...

    def lock(self, number: int) -> Path:
        """The file or directory whose flock is the lease of an artifact."""
        ...

    def used(self, number: int, ns: int) -> None:
        """Put an artifact's last use at ``ns``."""
        ...


class HostWeights:
    name, clock_kept, denies, leases = "hostweights", True, True, True

    def __init__(self, folder: Path) -> None:
        self.root = make_hostweights.make_store(folder / "store")

    def open(self) -> Store:
        from hwctl.stores.hostweights.store import open_store

        return open_store(self.root)

    def key(self, number: int) -> str:
        return make_hostweights.key_of(number)

    def artifact(self, number: int) -> Path:
        return make_hostweights.make_artifact(self.root, number)

    def open_path(self, number: int) -> Path:
        return self.root / "artifacts" / self.key(number)

    def payload(self, path: Path) -> Path:
        return path / "model.safetensors"

    def leftover(self, number: int) -> Path:
        return make_hostweights.make_staging(self.root, number)

    @contextmanager
    def at_work(self, number: int) -> Iterator[Path]:
        path = make_hostweights.make_staging(self.root, number, pid=os.getpid())
        with holders.locked(self.root / "locks" / f"{self.key(number)}.build.lock", "exclusive"):
            yield path

    def lock(self, number: int) -> Path:
        return self.root / "locks" / f"{self.key(number)}.artifact.lock"

    def used(self, number: int, ns: int) -> None:
        make_hostweights.set_last_use(self.root, number, ns)


class KtInt8:
    name, clock_kept, denies, leases = "ktint8", False, False, False

    def __init__(self, folder: Path) -> None:
        self.root = folder / "base"
        self.root.mkdir(mode=0o755)
        self._salt = secrets.token_hex(4)

    def open(self) -> Store:
        from hwctl.stores.ktint8.store import open_store

        return open_store(self.root)

    def key(self, number: int) -> str:
        return f"run-{self._salt}-{number:04d}"

    def artifact(self, number: int) -> Path:
        return make_ktint8.make_ready(self.root, self.key(number))

    def open_path(self, number: int) -> Path:
        return self.root / f"kt-int8-{self.key(number)}"

    def payload(self, path: Path) -> Path:
        return next(iter(sorted(path.rglob("*.kt"))))

    def leftover(self, number: int) -> Path:
        return make_ktint8.make_staging(self.root, self.key(number), process=make_ktint8.dead_process())

    @contextmanager
    def at_work(self, number: int) -> Iterator[Path]:
        process = make_ktint8.this_process()
        path = make_ktint8.make_staging(self.root, self.key(number), pid=os.getpid(), process=process)
        with holders.locked(path, "exclusive"):
            yield path

    def lock(self, number: int) -> Path:
        return self.open_path(number)

    def used(self, number: int, ns: int) -> None:
        root = self.lock(number)
        for path in [root, *root.rglob("*")]:
            os.utime(path, ns=(ns, ns))


class PageWeights:
    name, clock_kept, denies, leases = "pageweights", False, False, True

    def __init__(self, folder: Path) -> None:
        self.root = make_pageweights.make_store(folder / "cache")

    def open(self) -> Store:
        from hwctl.stores.pageweights.store import open_store

        return open_store(self.root)

    def key(self, number: int) -> str:
        return make_pageweights.prefix_of(number)

    def artifact(self, number: int) -> Path:
        return make_pageweights.make_artifact(self.root, number)

    def open_path(self, number: int) -> Path:
        return self.root / f"{self.key(number)}.locator.json"

    def payload(self, path: Path) -> Path:
        folder, prefix = (path, "") if path.is_dir() else (path.parent, path.name.partition(".")[0])
        return next(folder.glob(f"{prefix}*.safetensors"))

    def leftover(self, number: int) -> Path:
        make_pageweights.put_lock(self.root, number)
        return make_pageweights.make_artifact(self.root, number, locator=False)

    @contextmanager
    def at_work(self, number: int) -> Iterator[Path]:
        path = self.leftover(number)
        with holders.locked(self.lock(number), "exclusive"):
            yield path

    def lock(self, number: int) -> Path:
        return self.root / f".{self.key(number)}.lock"

    def used(self, number: int, ns: int) -> None:
        make_pageweights.set_last_use(self.root, number, ns)


KITS = {kit.name: kit for kit in (HostWeights, KtInt8, PageWeights)}
