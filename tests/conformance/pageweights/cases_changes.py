"""Publication and eviction."""

from __future__ import annotations

import os

from pagecase import Ctx, case
from pagegen import (
    EPOCH_NS,
    put,
    ramp,
    sized_page,
    special,
)


# ------------------------------------------------------------------ publication
@case("publish-fresh", "empty root", op="publish", base=False)
def _(ctx: Ctx) -> None:
    ctx.pages = ctx.pages[:1]
    ctx.ask(0)


@case("publish-bfloat16", "empty root, bfloat16 page", op="publish", base=False)
def _(ctx: Ctx) -> None:
    ctx.ask(1)


@case("publish-nan", "offered weights hold a NaN", op="publish", base=False)
def _(ctx: Ctx) -> None:
    ctx.ask(0)
    ctx.offer["gate_t"] = special(ctx.offer["gate_t"], 5, float("nan"))


@case("publish-wrong-dtype", "one offered weight is not of the authority's dtype", op="publish", base=False)
def _(ctx: Ctx) -> None:
    ctx.ask(0)
    ctx.offer["gate_t"] = ramp("float64", (1, 8, 4), 2)


@case("publish-over-artifact", "an equal artifact without receipt or locator is there", op="publish")
def _(ctx: Ctx) -> None:
    ctx.names[0].locator.unlink()
    ctx.names[0].receipt.unlink()


@case("publish-over-receipt", "an equal receipt without artifact or locator is there", op="publish")
def _(ctx: Ctx) -> None:
    ctx.names[0].locator.unlink()
    ctx.names[0].artifact.unlink()


@case("publish-over-pair", "an equal artifact and receipt without locator are there", op="publish")
def _(ctx: Ctx) -> None:
    ctx.names[0].locator.unlink()


@case(
    "publish-over-damaged-pair",
    "artifact (damaged) and receipt of the same key are there without locator",
    op="publish",
    allow=("published",),
    why="the original adopts the pair unread, writes a locator for it and then fails on every later access",
)
def _(ctx: Ctx) -> None:
    ctx.names[0].locator.unlink()
    ctx.flip(ctx.names[0].artifact, ctx.size(0) - 1)


@case(
    "publish-existing",
    "the page is already there and right",
    op="publish",
    allow=("hit", "published"),
    why="hit if the command says so, published if it only reports that the page is in the cache",
)
def _(ctx: Ctx) -> None:
    ctx.flip(ctx.names[1].artifact, ctx.size(1) - 1)  # a neighbour's damage is not this page's business


@case(
    "publish-lock-held",
    "another process holds the page's lock",
    op="publish",
    allow=("busy", "blocked"),
    why="a writer must never go ahead without the lock",
)
def _(ctx: Ctx) -> None:
    ctx.names[0].locator.unlink()
    ctx.hold(ctx.names[0].lock.name)


# --------------------------------------------------------------------- eviction
def several(
    ctx: Ctx,
    floats: tuple[int, ...] = (1000,) * 5,
    clock: tuple[int, ...] | None = None,
    step: int = 1_000_000_000,
) -> None:
    """Pages of given sizes; `clock` ranks the locators, lowest is the oldest."""
    ctx.fill([sized_page(f"P{i}", n, i) for i, n in enumerate(floats)])
    for names, rank in zip(ctx.names, clock or range(len(floats)), strict=False):
        stamp = EPOCH_NS + rank * step
        os.utime(names.locator, ns=(stamp, stamp))


def total(ctx: Ctx, *which: int) -> int:
    return sum(ctx.size(i) for i in which)


def evict(id: str, about: str, **more):
    return case(id, about, op="evict", base=False, **more)


@evict("evict-under-budget", "five pages, room for all and more")
def _(ctx: Ctx) -> None:
    several(ctx)
    ctx.budget = total(ctx, 0, 1, 2, 3, 4) + 1


@evict("evict-exactly-budget", "five pages, budget equal to their sum")
def _(ctx: Ctx) -> None:
    several(ctx)
    ctx.budget = total(ctx, 0, 1, 2, 3, 4)


@evict("evict-one-byte-over", "budget one byte below the sum")
def _(ctx: Ctx) -> None:
    several(ctx)
    ctx.budget = total(ctx, 0, 1, 2, 3, 4) - 1


@evict("evict-by-clock", "locator clock disagrees with page numbers and creation order")
def _(ctx: Ctx) -> None:
    several(ctx, clock=(3, 0, 4, 1, 2))
    ctx.budget = total(ctx, 0, 2)


@evict("evict-nanoseconds", "clocks differ by one nanosecond each, youngest first in number")
def _(ctx: Ctx) -> None:
    several(ctx, clock=(4, 3, 2, 1, 0), step=1)
    ctx.budget = total(ctx, 0, 1)


@evict("evict-big-middle", "oldest is small and not enough, the next is big")
def _(ctx: Ctx) -> None:
    several(ctx, floats=(10, 50_000, 1000, 1000))
    ctx.budget = total(ctx, 2, 3) + 5000


@evict("evict-held-oldest", "the oldest page's lock is held")
def _(ctx: Ctx) -> None:
    several(ctx)
    ctx.budget = total(ctx, 0, 4)
    ctx.hold(ctx.names[0].lock.name)


@evict("evict-lock-symlink", "the oldest page's lock is a symbolic link")
def _(ctx: Ctx) -> None:
    several(ctx)
    ctx.names[0].lock.symlink_to(ctx.move_out(ctx.names[0].lock))
    ctx.budget = total(ctx, 0, 4)


@evict(
    "evict-eviction-lock-held",
    "another process is evicting",
    allow=("busy", "blocked"),
    why="an evictor must never go ahead without the eviction lock",
    pages={"busy": ["P0 P1 P2 P3 P4"], "blocked": ["P0 P1 P2 P3 P4"]},
)
def _(ctx: Ctx) -> None:
    several(ctx)
    ctx.budget = 1
    ctx.hold(".eviction.lock")


@evict(
    "evict-orphan-artifact",
    "an artifact without locator fills a fifth of the total",
    why="counted by the original but never freed by it; hwctl may reclaim it first, under its page's lock",
    pages={"done": ["P2 P3", "P1 P2 P3"]},
)
def _(ctx: Ctx) -> None:
    several(ctx)
    ctx.names[4].locator.unlink()
    ctx.names[4].receipt.unlink()
    ctx.budget = total(ctx, 0, 1, 2)


@evict(
    "evict-corrupt-oldest",
    "the oldest locator is not JSON",
    allow=("done", "refused"),
    why="the original stops with an error and frees nothing; hwctl should skip it, report it and go on",
    pages={"done": ["P0 P3 P4"], "refused": ["P0 P1 P2 P3 P4"]},
)
def _(ctx: Ctx) -> None:
    several(ctx)
    ctx.rewrite(ctx.names[0].locator, b"{")
    ctx.budget = total(ctx, 0, 3, 4)


@evict("evict-missing-artifact", "the oldest locator's artifact is gone: nothing gained from it")
def _(ctx: Ctx) -> None:
    several(ctx)
    ctx.names[0].artifact.unlink()
    ctx.budget = total(ctx, 2, 3, 4)


@evict("evict-missing-receipt", "the oldest page has no receipt")
def _(ctx: Ctx) -> None:
    several(ctx)
    ctx.names[0].receipt.unlink()
    ctx.budget = total(ctx, 1, 2, 3, 4)


@evict("evict-foreign-locator", "an old file whose name only looks like a locator's")
def _(ctx: Ctx) -> None:
    several(ctx)
    put(ctx.root / "notes.locator.json", b"not a locator", 0o600)
    os.utime(ctx.root / "notes.locator.json", ns=(1, 1))
    ctx.budget = total(ctx, 3, 4)


@evict(
    "evict-foreign-artifact",
    "a foreign *.safetensors file is counted",
    why="the original frees pages for it; hwctl may leave it out of the count, and must keep it",
    pages={"done": ["P1 P2 P3 P4", "P0 P1 P2 P3 P4"]},
)
def _(ctx: Ctx) -> None:
    several(ctx)
    put(ctx.root / "model.safetensors", b"x" * ctx.size(0), 0o600)
    ctx.budget = total(ctx, 0, 1, 2, 3, 4)


@evict(
    "evict-dangling-artifact",
    "an unrelated *.safetensors link to nothing",
    allow=("done",),
    why="the original stops with an error before freeing anything",
    pages={"done": ["P2 P3 P4"]},
)
def _(ctx: Ctx) -> None:
    several(ctx)
    (ctx.root / "x.safetensors").symlink_to("nowhere")
    ctx.budget = total(ctx, 2, 3, 4)


@evict(
    "evict-temporaries",
    "big leftovers of dead publications are not counted",
    why="hwctl may remove leftovers under the page's lock, but must not evict pages for them",
)
def _(ctx: Ctx) -> None:
    several(ctx)
    put(ctx.root / f".{ctx.names[2].prefix}.4194000.1.1700000000000000000.tmp", b"x" * 100_000, 0o600)
    ctx.budget = total(ctx, 0, 1, 2, 3, 4)


@evict("evict-everything", "budget of one byte")
def _(ctx: Ctx) -> None:
    several(ctx)
    ctx.budget = 1


@case("publish-over-budget", "a third page published into a budget for two", op="publish", base=False)
def _(ctx: Ctx) -> None:
    several(ctx, floats=(1000, 1000, 1000), clock=(1, 0, 2))
    for path in (ctx.names[2].locator, ctx.names[2].receipt, ctx.names[2].artifact):
        path.unlink()
    ctx.ask(2)
    ctx.budget = 2 * ctx.size(0)
