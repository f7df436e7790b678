"""The command tree as data, and help made from it."""

from __future__ import annotations

from hwctl.cli.app import tree
from hwctl.cli.grammar import Entry, Param, _sections
from hwctl.cli.help import label, page

COMMON = {"--json", "--quiet", "--verbose", "--color", "--family", "--help"}
WRITERS = {"quarantine", "reclaim-stale", "evict"}


def spellings(verb: object) -> set[str]:
    return {name for param in verb.options for name in param.names}  # type: ignore[attr-defined]


def test_every_command_has_the_common_options() -> None:
    for verb in tree().walk():
        if not verb.verbs:
            assert spellings(verb) >= COMMON, verb.name


def test_writing_verbs_can_be_tried_and_do_not_ask_twice() -> None:
    for verb in tree().walk():
        if verb.path[-1] in WRITERS or (len(verb.path) == 3 and verb.path[1] == "publish"):
            assert spellings(verb) >= {"--dry-run", "-n", "--yes", "-y", "--wait"}, verb.name


def test_every_command_and_option_says_what_it_is_for() -> None:
    for verb in tree().walk():
        assert verb.summary.endswith("."), verb.name
        for param in verb.params:
            assert param.help, (verb.name, param.names)
        if not verb.verbs:
            assert any(section.title == "Examples" for section in verb.sections), verb.name


def test_a_path_among_alternatives_is_a_path() -> None:
    for value in ("FILE", "CHECKPOINT|ARTIFACT", "PATH|NAME|KEY"):
        assert Param(("--x",), "", value).takes_path
    for value in (None, "NAME", "KEY=VALUE", "DURATION"):
        assert not Param(("--x",), "", value).takes_path


def test_the_first_page_leads_on() -> None:
    top = tree()
    shown = page(top, 80)
    commands = [entry.term.split()[1] for section in top.sections for entry in section.entries]
    assert commands == ["publish", "verify", "inspect", "evict"]
    assert "hwctl COMMAND --help" in shown
    assert "man hwctl" in shown


def test_help_keeps_to_the_width() -> None:
    for verb in tree().walk():
        terms = {entry.term for section in verb.sections for entry in section.entries}
        for columns in (60, 80, 200):
            for line in page(verb, columns).splitlines():
                fixed = line.strip() in terms or line.startswith(("Usage:", "      --", "  -"))
                assert fixed or len(line) < columns, (verb.name, line)


def test_sections_of_an_epilog() -> None:
    text = """
Environment of COMMAND:
  HWCTL_X    what it is,
             and more of it

Examples:
  hwctl a --b c    why
  hwctl d
"""
    environment, examples = _sections(text)
    assert environment.title == "Environment of COMMAND"
    assert environment.entries == (Entry("HWCTL_X", "what it is, and more of it"),)
    assert examples.entries == (Entry("hwctl a --b c", "why"), Entry("hwctl d", ""))


def test_a_term_leaves_room_in_its_line() -> None:
    """A list of words that fills lines belongs in the help of an option; completion has it all the same."""
    for verb in tree().walk():
        for param in verb.params:
            assert len(label(param)) < 50, (verb.name, param.names)
    (inspect,) = (verb for verb in tree().verbs if verb.path[-1] == "inspect")
    (state,) = (param for param in inspect.params if "--state" in param.names)
    assert state.value == "STATE" and {"ready", "absent"} <= set(state.choices)
    assert "unreadable" in state.help and "absent" not in state.help


def test_defaults_that_are_no_constants_are_said() -> None:
    for verb in tree().walk():
        for param in verb.params:
            if {"--jobs", "--wait"} & set(param.names):
                assert "unless given" in param.help, (verb.name, param.names)
                assert ("10min" in param.help) == (verb.path[1] == "publish" and "--wait" in param.names)
