"""``hwctl reclaim-stale``: remove what producers proven dead have left behind."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hwctl.cli import params, units
from hwctl.cli.answer import Answer

EXAMPLES = """
Examples:
  hwctl reclaim-stale -n                        what would go from /dev/shm, and why
  hwctl reclaim-stale -y --older-than 2h        for cron
  hwctl reclaim-stale -y --run-id job-4711      for a job's epilog: this run's trees alone
  hwctl reclaim-stale -y --family ktint8 /mnt/kt    a base of its own, which may be empty
"""

_Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[ROOT|PATH]...",
        parser=units.operand,
        show_default=False,
        help="Stores to sweep, or entries; default HWCTL_ROOTS, else /dev/shm and the stores in it.",
    ),
]
_RunId = Annotated[
    str | None,
    typer.Option("--run-id", metavar="ID", parser=units.word, show_default=False, help="Only this run."),
]
_OlderThan = Annotated[
    float | None,
    typer.Option(
        "--older-than",
        metavar="DURATION",
        parser=units.duration,
        show_default=False,
        help="Unchanged for this long, in place of the grace times of each family.",
    ),
]
_Leaseless = Annotated[
    bool,
    typer.Option("--leaseless", help="Staging trees without a lease too, once they are old enough."),
]
_Ready = Annotated[
    bool, typer.Option("--ready", help="Whole ready trees too whose producer is dead and that nobody uses.")
]


def register(app: typer.Typer) -> None:
    app.command("reclaim-stale", epilog=EXAMPLES)(reclaim_stale)


def reclaim_stale(
    paths: _Paths = None,
    older_than: _OlderThan = None,
    match: params.Match = None,
    run_id: _RunId = None,
    leaseless: _Leaseless = False,
    ready: _Ready = False,
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
    """Remove what publishers and consumers that crashed or were killed have left behind.

    Staging, temporaries, half-finished removals, orphans and half-consumed trees nobody holds. A quarantine
    or a publication that was interrupted while it moved an entry costs no byte: the entry is set aside, for
    quarantine --restore. A pid alone proves nothing: death is a free lock that the producer is known to hold,
    another boot, or a pid that is gone, a zombie, or younger than the lease; the evidence is told for what
    goes and for what is kept. A sweep that keeps entries is ok (0); an entry named as PATH and kept is busy
    (11) while it lives, and refused (12) when its death cannot be proven; one that --match or --run-id leaves
    out is kept and ok. A folder that holds no store is not found (10); a base of kt-int8 trees looks so while
    it is empty, and is taken for one with --family ktint8 (nothing to do, 0).
    """
    from hwctl.cli.metrics import destination

    with Answer(
        "reclaim-stale",
        json=json,
        quiet=quiet,
        verbose=verbose,
        color=color,
        dry_run=dry_run,
        metrics=destination(metrics, "reclaim-stale"),
    ) as answer:
        from hwctl.cli import text
        from hwctl.cli.outcomes import conduct, in_one, planned
        from hwctl.cli.targets import Resolver
        from hwctl.core import reclaim_stale as core
        from hwctl.fs import space
        from hwctl.stores.base import StalePolicy

        age = None if older_than is None else int(older_than * 1e9)
        policy = StalePolicy(age, leaseless, ready, other_users)
        # Whoever is not going to look at the plan need not wait until every tree has been walked.
        sizes = dry_run or not yes
        resolver = Resolver(answer, family, idle=True, sizes=sizes)
        words = sys.argv[1:]
        targets = resolver.given(paths or [])
        named = frozenset(target.path for target in targets if target.artifact is not None)
        selection = core.Selection(tuple(match or ()), run_id, named)
        roots = {target.store.root for target in targets}
        before = space.used(roots)
        found = planned(
            answer,
            targets,
            lambda target: core.plan(target, selection, policy, words, sizes=sizes),
        )
        steps = [step for of_store in found for step in of_store]
        conduct(answer, steps, in_one(partial(core.reclaim, policy)), yes=yes, wait=wait)
        after = space.used(roots)
        answer.totals.update(used_bytes_before=before, used_bytes_after=after)
        if answer.totals["bytes_freed"]:
            on_disk = f"{text.size(before)} were used before and {text.size(after)} are now"
            answer.close_with(f"{answer.verdict}; {on_disk}")
    return answer.exit_status
