"""``hwctl --version``: answered before Typer is imported."""

from __future__ import annotations

from hwctl import __version__

_LIBRARIES = ("torch", "safetensors", "typer", "rich", "orjson")


def show(rest: list[str]) -> int:
    """Print the version; with ``--json`` also those of the libraries, read from their metadata."""
    from hwctl.cli.answer import Answer

    with Answer("version", json="--json" in rest, reads_only=True) as answer:
        if answer.output.json:
            answer.result({"hwctl": __version__, **_versions()})
        answer.line(f"hwctl {__version__}")
    return answer.exit_status


def _versions() -> dict[str, object]:
    import platform
    from importlib import metadata

    found: dict[str, object] = {"python": platform.python_version(), "kernel": platform.release()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found
