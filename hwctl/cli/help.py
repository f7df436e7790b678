"""``--help``: the command tree's data as a page for a terminal, and the classes that make Typer print it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from hwctl.cli import environment
from hwctl.cli.grammar import Param, Verb, verb_of

_WIDEST = 100
_LEFT = 28


class Command(TyperCommand):
    """A command whose help is ours."""

    def get_help(self, ctx: Any) -> str:
        return page(verb_of(self, tuple(ctx.command_path.split())), environment.columns())


class Group(TyperGroup):
    """A group whose help is ours, and which shows sub-groups first: publishing comes before all else."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = dict(sorted(self.commands.items(), key=lambda item: not isinstance(item[1], Group)))

    def get_help(self, ctx: Any) -> str:
        return page(verb_of(self, tuple(ctx.command_path.split())), environment.columns())


class App(typer.Typer):
    """A Typer app whose commands have our help."""

    def __init__(self, name: str, about: Any, *, epilog: str | None = None) -> None:
        super().__init__(
            name=name,
            epilog=epilog,
            cls=Group,
            add_completion=False,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            no_args_is_help=True,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        self.callback()(about)

    def command(self, name: str | None = None, **settings: Any) -> Any:
        """As Typer's, with our class of command."""
        return super().command(name, cls=Command, **settings)


def page(verb: Verb, columns: int) -> str:
    """The help page of a command, at most ``columns`` wide but for examples."""
    width = min(_WIDEST, max(50, columns)) - 1
    lines = [f"Usage: {verb.synopsis}", ""]
    for paragraph in (verb.summary, *verb.body):
        lines += [*textwrap.wrap(paragraph, width), ""]
    if verb.arguments:
        lines += ["Arguments:", *_definitions(verb.arguments, width), ""]
    lines += ["Options:", *_definitions(verb.options, width)]
    if verb.verbs:
        lines += ["", "Commands:"]
        for child in verb.verbs:
            lines += _definition(child.path[-1], child.summary, width, 18)
    for section in verb.sections:
        lines += ["", f"{section.title}:"]
        for entry in section.entries:
            words = textwrap.wrap(entry.words, width - 6)
            lines += [f"  {entry.term}", *(f"      {line}" for line in words)]
    if verb.verbs:
        more = f"{verb.name} COMMAND --help says all about one; man hwctl, what they have in common."
        lines += ["", *textwrap.wrap(more, width)]
    return "\n".join(lines)


def _definitions(params: tuple[Param, ...], width: int) -> Iterator[str]:
    for param in params:
        yield from _definition(label(param), remarks(param), width, _LEFT)


def label(param: Param) -> str:
    """``-q, --quiet``, ``    --jobs N``, ``PATH...``."""
    if not param.is_option:
        return param.names[0] + ("..." if param.repeatable else "")
    text = ", ".join(param.names) if param.names[0][:2] != "--" else "    " + ", ".join(param.names)
    return text if param.value is None else f"{text} {param.value}"


def remarks(param: Param) -> str:
    """The help text and what else there is to know: default, environment."""
    extra = []
    if param.default is not None:
        extra.append(f"default {param.default}")
    if param.env is not None:
        extra.append(f"or {param.env}")
    return param.help + (f" [{', '.join(extra)}]" if extra else "")


def _definition(term: str, words: str, width: int, left: int) -> Iterator[str]:
    body = textwrap.wrap(words, max(20, width - left)) or [""]
    if len(term) + 4 > left:
        yield f"  {term}"
    else:
        yield f"  {term:<{left - 2}}{body.pop(0)}"
    for line in body:
        yield f"{'':<{left}}{line}"
