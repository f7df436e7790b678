"""What a usage error can add to its own words: the verb that was meant, the word that is missing.

Owns the habits of other programs and what hwctl calls the same. What is wrong with a value is said by the
parser that refuses it.
"""

from __future__ import annotations

import re

from hwctl.cli import environment

_INSPECT = "hwctl inspect shows what is there"
_REMOVE = "hwctl evict removes artifacts, hwctl reclaim-stale what dead producers left behind"

_INSTEAD = {
    "list": _INSPECT,
    "ls": _INSPECT,
    "status": _INSPECT,
    "show": _INSPECT,
    "help": "it is hwctl --help, hwctl COMMAND --help or man hwctl",
    "version": "it is hwctl --version",
    "rm": _REMOVE,
    "delete": _REMOVE,
    "gc": _REMOVE,
    "clean": _REMOVE,
    "prune": _REMOVE,
}
_NO_SUCH_COMMAND = re.compile(r"No such command '([^']*)'")


def hinted(message: str, command: str) -> str:
    """A usage error of a command, with what can be added to it."""
    unknown = _NO_SUCH_COMMAND.match(message)
    if unknown and command == "hwctl" and unknown[1] in _INSTEAD:
        return f"{unknown[0]}; {_INSTEAD[unknown[1]]}"  # better than a suggestion that goes by letters
    hint = None if "Did you mean" in message else _hint(message, command, unknown is not None)
    return message if hint is None else f"{message.rstrip('.')}; {hint}"


def _hint(message: str, command: str, unknown: bool) -> str | None:
    if command == "hwctl publish" and (unknown or message.startswith("No such option")):
        return "after publish comes what is made: hostweights, ktint8 or pageweights"
    if message.lower().startswith("missing") and "PATH" in message and environment.roots():
        return f"{command} takes none from HWCTL_ROOTS"
    return None
