"""``hwctl evict``: remove what nobody leases, oldest use first, or exactly what is named."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwctl.cli import params, units
from hwctl.cli.answer import Answer
from hwctl.cli.units import Size

if TYPE_CHECKING:
    from hwctl.cli.eviction import Wanted
    from hwctl.core.plan import Target
    from hwctl.core.policy import Filters
    from hwctl.stores.base import Family

EXAMPLES = """
Examples:
  hwctl evict /store --max-size 200GiB -n       the plan, and nothing else
  hwctl evict -y /store --min-free 10%          make room on its file system
  hwctl evict -y /store --quarantined --older-than 7d
  hwctl evict -y /store --quarantined KEY       one entry, by its key or its name in quarantine
  hwctl evict /store --quarantined --all -n     all that is set aside
  hwctl evict -y /store/artifacts/KEY           just this one
"""

_MaxSize = Annotated[
    Size | None,
    typer.Option(
        "--max-size",
        metavar="SIZE",
        parser=units.size_or_share,
        show_default=False,
        help="Until the store is no larger; a share is one of its file system.",
    ),
]
_MinFree = Annotated[
    Size | None,
    typer.Option(
        "--min-free",
        metavar="SIZE",
        parser=units.size_or_share,
        show_default=False,
        help="Until its file system has this much free.",
    ),
]
_Keep = Annotated[
    int | None,
    typer.Option(
        "--keep",
        metavar="N",
        parser=units.count,
        show_default=False,
        help="Until only the N last used are left.",
    ),
]
_OlderThan = Annotated[
    float | None,
    typer.Option(
        "--older-than",
        metavar="DURATION",
        parser=units.duration,
        show_default=False,
        help="Everything not used for this long.",
    ),
]
_All = Annotated[bool, typer.Option("--all", help="Everything that nobody leases.")]
_MinAge = Annotated[
    float | None,
    typer.Option(
        "--min-age",
        metavar="DURATION",
        parser=units.duration,
        show_default=False,
        help="But nothing that was created less than this ago.",
    ),
]
_Quarantined = Annotated[
    bool, typer.Option("--quarantined", help="Only what is quarantined; a store needs a limit all the same.")
]


def register(app: typer.Typer) -> None:
    app.command("evict", epilog=EXAMPLES)(evict)


def evict(
    paths: params.Paths,
    max_size: _MaxSize = None,
    min_free: _MinFree = None,
    older_than: _OlderThan = None,
    keep: _Keep = None,
    everything: _All = False,
    match: params.Match = None,
    exclude: params.Exclude = None,
    min_age: _MinAge = None,
    quarantined: _Quarantined = False,
    other_users: params.OtherUsers = False,
    dry_run: params.DryRun = False,
    yes: params.Yes = False,
    wait: params.Wait = None,
    metrics: params.Metrics = None,
    json: params.Json = False,
    quiet: params.Quiet = False,
    verbose: params.Verbose = 0,
    color: params.Color = params.Colors.AUTO,
    family: params.FamilyOption = None,
) -> int:
    """Remove what nobody leases, oldest use first, or exactly what is named.

    PATH names stores, with at least one limit, or entries, with none. A store is taken in one order over all
    its entries by last use (never by access time), and not one more goes than the limits need. Leased
    entries are passed over and named. A target (--max-size, --min-free, --keep) that cannot be reached is
    no-room (14), with what is missing and why; --older-than or --all that met leased entries is busy (11)
    once the rest is done. Sizes are counted as the family counts: pages by their artifacts, host weights by
    every file below the root, kt-int8 by trees. The least of --max-size, the size of the file system and the
    cgroup's memory limit binds, and the answer says which. With --quarantined, a PATH that is no path is the
    key or the name of a quarantined entry, looked for in the stores beside it, else in HWCTL_ROOTS, else in
    /dev/shm.
    """
    from hwctl.cli.eviction import Wanted, evict_stores
    from hwctl.cli.metrics import destination
    from hwctl.cli.outcomes import conduct, in_one, planned
    from hwctl.core.evict import evict_one
    from hwctl.core.evict_plan import plan_named
    from hwctl.core.policy import Filters

    past, age = (None if given is None else int(given * 1e9) for given in (older_than, min_age))
    filters = Filters(tuple(match or ()), tuple(exclude or ()), age, quarantined)
    wanted = Wanted(max_size, min_free, past, keep, everything)
    wanted.require_sense()
    with Answer(
        "evict",
        json=json,
        quiet=quiet,
        verbose=verbose,
        color=color,
        dry_run=dry_run,
        metrics=destination(metrics, "evict"),
    ) as answer:
        stores, entries = _meant(answer, paths, wanted, filters, family)
        if entries:
            words = sys.argv[1:]
            steps = planned(
                answer, entries, lambda entry: plan_named(entry, filters, words, other_users=other_users)
            )
            conduct(answer, steps, in_one(evict_one), yes=yes, wait=wait)
        elif stores:
            evict_stores(answer, stores, wanted, filters, yes=yes, wait=wait, other_users=other_users)
    return answer.exit_status


def _meant(
    answer: Answer, paths: Sequence[Path], wanted: Wanted, filters: Filters, family: Family | None
) -> tuple[list[Target], list[Target]]:
    """The stores to be taken to their limits, or the entries to be removed; never both."""
    from hwctl.cli.targets import Resolver, called, once
    from hwctl.stores.base import State

    names = [path for path in paths if filters.quarantined and _is_name(path)]
    resolver = Resolver(answer, family, idle=True)
    targets = resolver.named(path for path in paths if path not in names)
    if names and not targets and wanted.narrows(filters):
        # Limits are for stores, so these are stores mistyped.
        targets, names = resolver.named(names), []
    stores = [target for target in targets if target.artifact is None]
    entries = [target for target in targets if target.artifact is not None]
    wanted.require_fit(stores=bool(stores) and not names, entries=bool(entries or names), filters=filters)
    if not names:
        return stores, once(entries)
    # A PATH beside a name says where to look for it, also one that leads nowhere.
    where = stores if len(names) < len(paths) else resolver.given([])
    keys = [path.name for path in names]
    return [], once([*entries, *called(answer, where, keys, {State.QUARANTINED})])


def _is_name(path: Path) -> bool:
    """Whether a PATH can only be the name or key of an entry: there is nothing of that name here."""
    return path.parent == Path() and not os.path.lexists(path)
