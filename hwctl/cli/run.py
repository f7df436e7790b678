"""Runs the Typer app and maps what no command caught: usage errors, help, bugs before a command began."""

from __future__ import annotations

import contextlib
import io
import warnings

import typer

from hwctl.cli import environment, exits
from hwctl.cli.document import dumps
from hwctl.cli.output import Output
from hwctl.errors import HwctlError, Status, Usage


def run(argv: list[str]) -> int:
    """The exit status of ``hwctl`` with these arguments. Signals pass through."""
    output = Output(json="--json" in argv)
    if not environment.debug():
        # Libraries warn their developers (torch does, where numpy is absent); stderr is for our words alone.
        warnings.simplefilter("ignore")
    help_text = io.StringIO()
    try:
        # Commands write to the descriptors themselves; only Typer's help comes through sys.stdout.
        with contextlib.redirect_stdout(help_text):
            from hwctl.cli.app import build

            status = build()(args=argv, prog_name="hwctl", standalone_mode=False)
    except typer.TyperException as exc:
        return _usage(output, exc.format_message(), _command_of(exc))
    except Usage as exc:
        return _usage(output, exc.message, None)
    except Exception as exc:
        return _failed(output, exits.as_failure(exc, "hwctl"))
    if help_text.getvalue():
        output.out.raw(help_text.getvalue().encode("utf-8", "backslashreplace"))
        output.flush()
        return _delivered(output)
    return int(status or 0)


def _delivered(output: Output) -> int:
    if output.out.broken is None:
        return int(Status.OK)
    return exits.BROKEN_PIPE if output.out.broken == exits.EPIPE else int(Status.IO)


def _command_of(exc: typer.TyperException) -> str:
    """``hwctl verify``, as far as the parser got before it stumbled."""
    context = getattr(exc, "ctx", None)
    return str(getattr(context, "command_path", "hwctl"))


def _usage(output: Output, message: str, command: str | None) -> int:
    command = command or "hwctl"
    if output.json:
        output.err.raw(dumps(exits.error_object(Usage(message))))
    elif "\n" in message:
        # No command was given at all: the message is the help page.
        output.err.raw(message.encode("utf-8", "backslashreplace") + b"\n")
    else:
        output.err.line(f"{command}: {message} (see {command} --help)")
    output.flush()
    return int(Status.USAGE)


def _failed(output: Output, error: HwctlError) -> int:
    if output.json:
        output.err.raw(dumps(exits.error_object(error, debug=environment.debug())))
    else:
        if environment.debug() and "traceback" in error.details:
            output.err.raw(str(error.details["traceback"]).encode("utf-8", "backslashreplace"))
        output.err.line(f"hwctl: {error.message}")
    output.flush()
    return int(error.status)
