"""What may be odd about the root, the locks, other files and the presented authority."""

from __future__ import annotations

from pagecase import EITHER, Ctx, case, other_hex
from pagegen import (
    put,
)


# --------------------------------------------------- root, locks and other files
@case(
    "root-mode-0755",
    "cache root open to others",
    allow=EITHER,
    why="the original tightens the mode itself; a read-only check should say so instead, and must not write",
)
def _(ctx: Ctx) -> None:
    ctx.root.chmod(0o755)


@case(
    "root-absent",
    "cache root does not exist",
    base=False,
    allow=("miss", "refused"),
    why="the original makes it; a read-only check must not",
)
def _(ctx: Ctx) -> None:
    ctx.ask(0)
    ctx.root.rmdir()


@case("stale-temporaries", "leftovers of dead publications beside a right page")
def _(ctx: Ctx) -> None:
    prefix, key = ctx.names[0].prefix, ctx.names[0].key
    put(ctx.root / f".{prefix}.4194000.140000000000000.1700000000000000000.tmp", b"half", 0o600)
    put(ctx.root / f".{prefix}.{key}.receipt.json.4194000.140000000000000.tmp", b"{", 0o644)
    put(ctx.root / f".{prefix}.locator.json.4194000.140000000000000.tmp", b"", 0o600)


@case("library-temporary", "a leftover of the safetensors library, named without any prefix")
def _(ctx: Ctx) -> None:
    put(ctx.root / ".tmpAb3dEf", b"\0" * 5000, 0o600)


@case("orphan-second-artifact", "the same prefix also has an artifact no locator names")
def _(ctx: Ctx) -> None:
    put(ctx.root / f"{ctx.names[0].prefix}.{'0' * 64}.safetensors", b"x" * 5000, 0o400)


@case("foreign-files", "files and a folder that are none of the cache's")
def _(ctx: Ctx) -> None:
    put(ctx.root / "README.txt", b"hello\n", 0o644)
    put(ctx.root / "notes.locator.json", b"not a locator", 0o644)
    (ctx.root / "quarantine").mkdir()
    put(ctx.root / "quarantine" / "old.safetensors", b"old", 0o644)


@case(
    "dangling-foreign-artifact",
    "an unrelated *.safetensors link to nothing",
    allow=("hit",),
    why="the original fails on its size after the hit; it is not this page's business",
)
def _(ctx: Ctx) -> None:
    (ctx.root / "x.safetensors").symlink_to("nowhere")


@case("lock-missing", "the page's lock file is absent")
def _(ctx: Ctx) -> None:
    ctx.names[0].lock.unlink()


@case("lock-mode-0666", "the page's lock file is open to others")
def _(ctx: Ctx) -> None:
    ctx.names[0].lock.chmod(0o666)


@case(
    "lock-symlink",
    "the page's lock file is a symbolic link",
    allow=EITHER,
    why="the original refuses to open it; a reader that takes no lock may still verify",
)
def _(ctx: Ctx) -> None:
    ctx.names[0].lock.symlink_to(ctx.move_out(ctx.names[0].lock))


@case(
    "lock-held",
    "another process holds the page's lock exclusively",
    allow=("hit", "busy", "blocked"),
    why="a reader may wait, give up as busy, or read without the lock",
)
def _(ctx: Ctx) -> None:
    ctx.hold(ctx.names[0].lock.name)


@case(
    "eviction-lock-held",
    "another process holds the eviction lock",
    allow=("hit",),
    why="the original waits for this lock on every access; a reader has no need of it",
)
def _(ctx: Ctx) -> None:
    ctx.hold(".eviction.lock")


# ------------------------------------------------------------------- authority
@case("request-other-source", "presented source digest differs from the one published under")
def _(ctx: Ctx) -> None:
    ctx.authority["sourceObjectSha256"] = other_hex(ctx.authority["sourceObjectSha256"])


@case("request-ctime-differs", "presented identity differs in its last number only")
def _(ctx: Ctx) -> None:
    identity = list(ctx.authority["sourceFileIdentity"])
    identity[4] += 1
    ctx.authority["sourceFileIdentity"] = identity


@case("request-negative-page", "presented page id is negative")
def _(ctx: Ctx) -> None:
    ctx.authority["pageId"] = -1


@case("request-size-differs", "sourceObjectBytes and the size in sourceFileIdentity differ")
def _(ctx: Ctx) -> None:
    ctx.authority["sourceObjectBytes"] += 1
