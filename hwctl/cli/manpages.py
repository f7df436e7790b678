"""Man pages, made from the command tree and the tables of the contract."""

from __future__ import annotations

from collections.abc import Sequence

from hwctl import __version__
from hwctl.cli import facts, roff
from hwctl.cli.grammar import Param, Section, Verb

_DATE = "2026-12-01"


def page(verb: Verb) -> str:
    """The page of one command; that of hwctl itself holds what all have in common."""
    whole = len(verb.path) == 1
    name = "-".join(verb.path)
    out = [
        '.\\" Made from the command tree by python -m hwctl.cli.manual; do not edit.',
        f'.TH {roff.escape(name.upper())} 1 {_DATE} "hwctl {__version__}" "Model\\-weight stores"',
        roff.section("Name"),
        f"{roff.escape(name)} \\-",
        *roff.lines(_lowered(verb.summary)),
        roff.section("Synopsis"),
        *_synopsis(verb),
        roff.section("Description"),
        *roff.lines(verb.summary),
        *(line for paragraph in verb.body for line in roff.paragraph(paragraph)),
    ]
    if whole:
        for text in facts.ABOUT:
            out += roff.paragraph(text)
    if verb.verbs:
        out += [roff.section("Commands")]
        for child in verb.verbs:
            out += roff.definition(roff.bold(child.path[-1]), child.summary)
    if verb.arguments:
        out += [roff.section("Arguments"), *_params(verb.arguments)]
    out += [roff.section("Options"), *_params(verb.options)]
    for chapter in _chapters(verb):
        out += _chapter(chapter)
    out += [roff.section("See also"), *_see_also(verb)]
    return "\n".join(out) + "\n"


def _lowered(summary: str) -> str:
    return summary[0].lower() + summary[1:].rstrip(".")


def _synopsis(verb: Verb) -> list[str]:
    words = [roff.bold(verb.name)]
    if verb.options:
        words.append(f"[{roff.italic('option')}]...")
    if verb.verbs:
        words.append(roff.italic("command"))
    for param in verb.arguments:
        word = roff.italic(param.names[0]) + ("..." if param.repeatable else "")
        words.append(word if param.required else f"[{word}]")
    return [" ".join(words)]


def _params(params: Sequence[Param]) -> list[str]:
    out: list[str] = []
    for param in params:
        if param.is_option:
            term = ", ".join(map(roff.bold, param.names))
            if param.value is not None:
                term += f" {roff.italic(param.value)}"
        else:
            term = roff.italic(param.names[0]) + ("..." if param.repeatable else "")
        text = param.help
        if param.default is not None:
            text += f" Default: {param.default}."
        if param.env is not None:
            text += f" The environment variable {param.env} stands in for it."
        out += roff.definition(term, text)
    return out


def _chapters(verb: Verb) -> list[Section]:
    """What follows the options: exit status, environment and files on every page, examples last."""
    own = [section for section in verb.sections if section.title != "Examples"]
    examples = [section for section in verb.sections if section.title == "Examples"]
    return [*own, *facts.chapters(verb.path), *examples]


def _chapter(chapter: Section) -> list[str]:
    out: list[str] = []
    for entry in chapter.entries:
        if chapter.title == "Examples":
            words = f"{entry.words.rstrip('.:')}:" if entry.words else ""
            out += [".PP", *roff.lines(words[:1].upper() + words[1:])]
            out += [".RS 4", *roff.verbatim([entry.term]), ".RE"]
        elif entry.term:
            out += roff.definition(roff.bold(entry.term), entry.words)
        else:
            out += roff.paragraph(entry.words)
    if out[0] == ".PP":
        out.pop(0)
    return [roff.section(chapter.title), *out]


def _see_also(verb: Verb) -> list[str]:
    others = facts.see_also(verb)
    return [",\n".join(f"\\%{roff.bold(name)}(1)" for name in others)] if others else ["\\&"]
