"""``hwctl publish``: one sub-command per family, since their inputs differ."""

from __future__ import annotations

import typer

from hwctl.cli import publish_hostweights, publish_ktint8, publish_pageweights
from hwctl.cli.help import App

_FAMILIES = (publish_hostweights, publish_ktint8, publish_pageweights)


def register(app: typer.Typer) -> None:
    publish = App("publish", about)
    for family in _FAMILIES:
        family.register(publish)
    app.add_typer(publish, name="publish")


def about() -> None:
    """Publish weights into a store."""
