"""Runs the Typer app and maps what no command caught: usage errors, help, bugs before a command began."""

from __future__ import annotations

import contextlib
import io
import warnings

import typer

from hwctl.cli import environment, exits
from hwctl.cli.document import dumps
from hwctl.cli.hints import hinted
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
        # pydantic's own words in front of what an enumeration says about a wrong choice.
        message = exc.format_message().replace("Value error, ", "")
        # No command was given at all, and the message is the help page. Typer keeps that class to itself.
        return _usage(output, message, argv, page=type(exc).__name__ == "NoArgsIsHelpError")
    except Usage as exc:
        return _usage(output, exc.message, argv)
    except Exception as exc:
        return _failed(output, exits.as_failure(exc, "could not go on"))
    if help_text.getvalue():
        output.out.raw(help_text.getvalue().encode("utf-8", "backslashreplace"))
        output.flush()
        return exits.delivered(output.out.broken)
    return int(status or 0)


def _command_in(argv: list[str]) -> str:
    """``hwctl publish ktint8``: the words that name a command, whatever options stand between them."""
    from hwctl.cli.app import tree

    verb = tree()
    for word in argv:
        if word.startswith("-"):
            continue
        below = next((child for child in verb.verbs if child.path[-1] == word), None)
        if below is None:
            break
        verb = below
    return verb.name


def _usage(output: Output, message: str, argv: list[str], *, page: bool = False) -> int:
    command = _command_in(argv)
    message = hinted(message, command)
    if output.json:
        output.err.raw(dumps(exits.error_object(Usage(message))))
    elif page:
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
