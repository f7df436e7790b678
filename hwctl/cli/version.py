"""``hwctl --version``: answered before Typer is imported."""

from __future__ import annotations

from hwctl import __version__
from hwctl.cli import exits
from hwctl.cli.output import Output

_LIBRARIES = ("torch", "safetensors", "typer", "rich", "orjson")


def show(*, json: bool) -> int:
    """Print the version; as a document also those of the libraries, read from their metadata."""
    if not json:
        output = Output()
        output.out.line(f"hwctl {__version__}")
        output.flush()
        return exits.delivered(output.out.broken)
    from hwctl.cli.answer import Answer

    with Answer("version", json=True, reads_only=True) as answer:
        answer.result({"hwctl": __version__, **_versions()})
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
