"""The command tree as data: what help, man pages and completions are all made from.

Read off the very objects that parse the command line, so the three can never disagree with it or with each
other. The objects are Typer's; nothing outside of this module looks into them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

_CONTINUED = 8
_PATH_WORDS = {"PATH", "FILE", "DIR", "ROOT", "CHECKPOINT", "OBJECT", "ARTIFACT", "STAGING", "READY"}


@dataclass(frozen=True, slots=True)
class Param:
    """An option or argument. ``names`` of an option are its spellings, shortest first; of an argument its
    one placeholder. ``value`` is what an option takes, None for a flag."""

    names: tuple[str, ...]
    help: str
    value: str | None = None
    choices: tuple[str, ...] = ()
    default: str | None = None
    env: str | None = None
    required: bool = False
    repeatable: bool = False
    is_option: bool = True

    @property
    def takes_path(self) -> bool:
        """Whether any of the alternatives that the placeholder names is a path."""
        return not self.is_option or not _PATH_WORDS.isdisjoint((self.value or "").split("|"))


@dataclass(frozen=True, slots=True)
class Entry:
    """An example and what it is good for, or a word and what it means."""

    term: str
    words: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page beyond the options: examples, environment."""

    title: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Verb:
    """A command. ``path`` is how it is called: ("hwctl", "publish", "hostweights")."""

    path: tuple[str, ...]
    summary: str
    body: tuple[str, ...]
    params: tuple[Param, ...]
    sections: tuple[Section, ...]
    verbs: tuple[Verb, ...] = ()

    @property
    def name(self) -> str:
        return " ".join(self.path)

    @property
    def options(self) -> tuple[Param, ...]:
        return tuple(param for param in self.params if param.is_option)

    @property
    def arguments(self) -> tuple[Param, ...]:
        return tuple(param for param in self.params if not param.is_option)

    @property
    def synopsis(self) -> str:
        words = [self.name]
        if self.options:
            words.append("[OPTION]...")
        if self.verbs:
            words.append("COMMAND")
        for param in self.arguments:
            word = param.names[0] + ("..." if param.repeatable else "")
            words.append(word if param.required else f"[{word}]")
        return " ".join(words)

    def walk(self) -> Iterator[Verb]:
        """This command and all below it, in order of declaration."""
        yield self
        for verb in self.verbs:
            yield from verb.walk()


def verb_of(command: Any, path: tuple[str, ...]) -> Verb:
    """A Typer command as data."""
    paragraphs = [
        " ".join(part.split()) for part in re.split(r"\n\s*\n", (command.help or "").strip()) if part.strip()
    ]
    below: dict[str, Any] = getattr(command, "commands", {})
    return Verb(
        path,
        paragraphs[0] if paragraphs else "",
        tuple(paragraphs[1:]),
        tuple(_params(command)),
        tuple(_sections(command.epilog or "")),
        tuple(verb_of(child, (*path, name)) for name, child in below.items() if not child.hidden),
    )


def _params(command: Any) -> Iterator[Param]:
    for param in command.params:
        if not getattr(param, "hidden", False):
            yield _option(param) if param.param_type_name == "option" else _argument(param)
    yield Param(("-h", "--help"), "Show this help and exit.")


def _option(param: Any) -> Param:
    choices = tuple(_text(choice) for choice in param.type_descriptor.choices or ())
    flag = param.is_flag or param.count
    value = None if flag else param.metavar or "|".join(choices) or "VALUE"
    shown = param.default if param.show_default is True and not flag else None
    return Param(
        tuple(sorted(param.opts, key=len)),
        param.help or "",
        value,
        choices,
        None if shown is None or callable(shown) else _text(shown),
        param.envvar,
        param.required,
        bool(param.multiple or param.count),
    )


def _argument(param: Any) -> Param:
    return Param(
        ((param.metavar or param.name.upper()).removesuffix("..."),),
        param.help or "",
        required=param.required,
        repeatable=param.nargs == -1,
        is_option=False,
    )


def _text(value: object) -> str:
    return str(value.value) if isinstance(value, Enum) else str(value)


def _sections(epilog: str) -> Iterator[Section]:
    """An epilog taken apart: titles stand at the margin and end with a colon, entries are indented, term and
    words two blanks apart; what is indented further goes on with the words. Without a title: examples."""
    title, entries = "Examples", list[Entry]()
    for line in epilog.splitlines():
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if not indent and line.endswith(":"):
            if entries:
                yield Section(title, tuple(entries))
            title, entries = line[:-1], []
        elif indent >= _CONTINUED and entries:
            entries[-1] = Entry(entries[-1].term, f"{entries[-1].words} {line.strip()}".strip())
        else:
            term, _, words = line.strip().partition("  ")
            entries.append(Entry(term, words.strip()))
    if entries:
        yield Section(title, tuple(entries))
