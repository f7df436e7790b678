"""Completions for bash, zsh and fish, made from the command tree: static text, no program is run by a tab."""

from __future__ import annotations

from collections.abc import Iterator

from hwctl.cli.grammar import Param, Verb

_MADE = "Made from the command tree by python -m hwctl.cli.manual; do not edit."


def bash(top: Verb) -> str:
    """One function: it finds the command in the words before the cursor, then offers what fits there."""
    words, values, below = [], [], []
    for verb in top.walk():
        options = " ".join(name for param in verb.options for name in param.names)
        words.append(f"        '{verb.name}') options='{options}' ;;")
        if verb.verbs:
            children = " ".join(child.path[-1] for child in verb.verbs)
            below.append(f"        '{verb.name}') commands='{children}' ;;")
        for param in verb.options:
            if param.value is not None:
                pattern = "|".join(f"'{verb.name} {name}'" for name in param.names)
                values.append(f"        {pattern}) {_bash_value(param)} ;;")
    return _BASH.format(
        made=_MADE,
        below="\n".join(below),
        words="\n".join(words),
        values="\n".join(values),
        groups="|".join(f"'{verb.name}'" for verb in top.walk() if verb.verbs),
    )


def _bash_value(param: Param) -> str:
    if param.choices:
        return f"COMPREPLY=($(compgen -W '{' '.join(param.choices)}' -- \"$current\")); return"
    if param.takes_path:
        return "_hwctl_paths; return"
    return "COMPREPLY=(); return"


_BASH = """# {made}

_hwctl_paths() {{
    local IFS=$'\\n'
    COMPREPLY=($(compgen -f -- "$current"))
    compopt -o filenames 2>/dev/null
}}

_hwctl() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command=hwctl commands= options= word index
    for ((index = 1; index < COMP_CWORD; index++)); do
        word="${{COMP_WORDS[index]}}"
        case "$word" in
        --) _hwctl_paths; return ;;
        -*) continue ;;
        esac
        commands=
        case "$command" in
{below}
        esac
        if [[ " $commands " == *" $word "* ]]; then
            command="$command $word"
        fi
    done
    case "$command $previous" in
{values}
    esac
    case "$command" in
{words}
    esac
    if [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$current"))
        return
    fi
    commands=
    case "$command" in
{below}
    esac
    case "$command" in
    {groups}) COMPREPLY=($(compgen -W "$commands" -- "$current")) ;;
    *) _hwctl_paths ;;
    esac
}}

complete -F _hwctl hwctl
"""


def zsh(top: Verb) -> str:
    """A function for each command, handed to ``_arguments``."""
    functions = [line for verb in top.walk() for line in _zsh_function(verb)]
    return "\n".join(["#compdef hwctl", f"# {_MADE}", "", *functions, '_hwctl "$@"', ""])


def _zsh_function(verb: Verb) -> Iterator[str]:
    name = _zsh_name(verb)
    yield f"{name}() {{"
    specs = [spec for param in verb.options for spec in _zsh_option(param)]
    if verb.verbs:
        yield "  local curcontext=$curcontext state line"
        yield "  _arguments -C \\"
        yield from (f"    {spec} \\" for spec in specs)
        yield "    '1:command:->command' '*::argument:->argument'"
        yield "  case $state in"
        yield "  command)"
        yield "    local -a commands=("
        yield from (f"      {_quoted(f'{child.path[-1]}:{child.summary}')}" for child in verb.verbs)
        yield "    )"
        yield "    _describe -t commands command commands ;;"
        yield "  argument)"
        yield "    case $line[1] in"
        yield from (f"    {child.path[-1]}) {_zsh_name(child)} ;;" for child in verb.verbs)
        yield "    esac ;;"
        yield "  esac"
    else:
        yield "  _arguments \\"
        yield from (f"    {spec} \\" for spec in specs)
        yield "    '*:path:_files'"
    yield "}"
    yield ""


def _zsh_name(verb: Verb) -> str:
    return "_" + "_".join(word.replace("-", "_") for word in verb.path)


def _zsh_option(param: Param) -> Iterator[str]:
    words = param.help.replace("[", "(").replace("]", ")").replace(":", "\\:")
    for name in param.names:
        others = "*" if param.repeatable else f"({' '.join(param.names)})"
        value = ""
        if param.value is not None:
            offered = f"({' '.join(param.choices)})" if param.choices else " "
            value = f":{'value' if param.choices else param.value.lower()}:"
            value += "_files" if param.takes_path else offered
        yield _quoted(f"{others}{name}[{words}]{value}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def fish(top: Verb) -> str:
    """A line for each command and option, on the condition that its command was typed before it."""
    lines = [f"# {_MADE}", "complete -c hwctl -f"]
    for verb in top.walk():
        start = f"complete -c hwctl -n {_fish(_fish_condition(verb))}"
        for child in verb.verbs:
            lines.append(f"{start} -a {child.path[-1]} -d {_fish(child.summary)}")
        for param in verb.options:
            names = " ".join(map(_fish_name, param.names))
            lines.append(f"{start} {names}{_fish_value(param)} -d {_fish(param.help)}")
        if not verb.verbs:
            lines.append(f"{start} -F")
    return "\n".join(lines) + "\n"


def _fish_condition(verb: Verb) -> str:
    """True while this very command is the innermost one typed."""
    words = [f"__fish_seen_subcommand_from {word}" for word in verb.path[1:]]
    if verb.verbs:
        words.append(f"not __fish_seen_subcommand_from {' '.join(child.path[-1] for child in verb.verbs)}")
    return "; and ".join(words)


def _fish_name(name: str) -> str:
    return f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"


def _fish_value(param: Param) -> str:
    if param.value is None:
        return ""
    if param.choices:
        return f" -x -a {_fish(' '.join(param.choices))}"
    return " -r -F" if param.takes_path else " -x"


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
