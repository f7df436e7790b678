"""``hwctl publish``: one sub-command per family, since their inputs differ."""

from __future__ import annotations

import importlib
import importlib.util

import typer

from hwctl.cli.help import App

_FAMILIES = ("publish_hostweights", "publish_ktint8", "publish_pageweights")


def register(app: typer.Typer) -> None:
    publish = App("publish", about)
    for family in _FAMILIES:
        name = f"hwctl.cli.{family}"
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name).register(publish)
    app.add_typer(publish, name="publish")


def about() -> None:
    """Publish weights into a store."""
