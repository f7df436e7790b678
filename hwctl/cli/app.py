"""The Typer app: every command, registered eagerly; heavy imports stand inside the commands' bodies.

How a verb registers itself. Its module has one function that takes the app it belongs to::

    def register(app: typer.Typer) -> None:
        app.command("evict", epilog=EXAMPLES)(evict)

    def evict(
        paths: params.Paths,
        max_size: Annotated[Size | None, typer.Option("--max-size", metavar="SIZE", parser=…, help=…)] = None,
        dry_run: params.DryRun = False,
        json: params.Json = False,
        quiet: params.Quiet = False,
        verbose: params.Verbose = 0,
        color: params.Color = params.Colors.AUTO,
        family: params.FamilyOption = None,
    ) -> int:
        \"\"\"One line: what it does.

        A paragraph or two for the help and the man page.
        \"\"\"
        with Answer("evict", json=json, quiet=quiet, verbose=verbose, color=color, dry_run=dry_run) as answer:
            …                                       # typed results from core
            answer.result({**artifact_fields(a), "outcome": "done"}, Status.OK)     # the document
            answer.record("done", a.key)                                            # the text
            answer.totals["bytes_freed"] = freed
            answer.close_with("3 of 3 removed, 12 GiB freed")
        return answer.exit_status

Wrong combinations of options raise ``errors.Usage`` before anything is touched. Everything given to
``answer.line``, ``record``, ``note`` and ``warn`` is escaped there; coloured words are ``Styled`` pieces.
``epilog`` holds the examples, one a line: the command, two blanks or more, what it is good for.
``publish`` is a sub-app whose three commands register the same way.
"""

from __future__ import annotations

from typing import Annotated

import typer
import typer.main

from hwctl.cli import consume, evict, exec, inspect, publish, quarantine, reclaim_stale, verify
from hwctl.cli.grammar import Verb, verb_of
from hwctl.cli.help import App
from hwctl.errors import Usage

EXAMPLES = """
Examples:
  hwctl publish hostweights --from ~/models/Qwen3-8B --store /srv/weights  make an artifact of a checkpoint
  hwctl verify /srv/weights  check every artifact of a store, every byte
  hwctl inspect  show what lies on this node, and who uses it
  hwctl evict /srv/weights --max-size 200GiB -n  show what would go; without -n it is removed
"""

_VERBS = (publish, verify, inspect, quarantine, reclaim_stale, evict, consume, exec)


def build() -> typer.Typer:
    """The whole command tree."""
    app = App("hwctl", root, epilog=EXAMPLES)
    for verb in _VERBS:
        verb.register(app)
    return app


def tree() -> Verb:
    """The whole of hwctl as data."""
    return verb_of(typer.main.get_command(build()), ("hwctl",))


def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Publish, verify and reclaim model-weight stores on a node."""
    if version:
        # On its own it was answered before Typer was imported.
        raise Usage("--version stands alone, or with --json")
