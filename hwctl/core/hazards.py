"""What else on this machine may delete a store behind everybody's back (EVI-08).

Two programs do: systemd-logind removes what an ordinary user has in /dev/shm when the last session ends
(RemoveIPC), and systemd-tmpfiles removes what has grown old below the paths it is told of. Files that
vanish so look like damage. Only configuration is read; nothing is asked of a running service.
"""

from __future__ import annotations

import fnmatch
import os
import pwd
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_SHARED_MEMORY = PurePosixPath("/dev/shm")
_CONFIG_ROOTS = ("etc", "run", "usr/local/lib", "usr/lib")
_TRUE = frozenset({"1", "yes", "y", "true", "t", "on"})
_AGEING = frozenset("dDvqQe")
_MODIFIERS = "+!-=~^$?"
_DEFAULT_SYS_UID_MAX = 999
_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of tmpfiles.d that ages (``age`` set) or spares (``age`` None) what lies at ``path``."""

    path: str
    age: str | None
    source: str


def hazards(root: Path, owner_uid: int, *, base: Path = Path("/")) -> tuple[str, ...]:
    """Warnings about what may remove ``root``, a resolved path whose owner is ``owner_uid``.

    ``base`` is where the system's configuration is looked up. Unreadable configuration warns of nothing.
    """
    if not (base / "run/systemd/system").is_dir():
        return ()
    found = []
    if PurePosixPath(root).is_relative_to(_SHARED_MEMORY) and _is_login_user(owner_uid, base):
        configs = _configs(base, "systemd/logind.conf", "systemd/logind.conf.d")
        if removes_ipc(text for _, text in configs):
            found.append(
                f"{root} belongs to uid {owner_uid}, an ordinary user: systemd-logind deletes it when"
                " that user's last session ends; set RemoveIPC=no in logind.conf, or let the user linger"
            )
    rule = ageing(str(root), parse_rules(_configs(base, None, "tmpfiles.d")))
    if rule is not None:
        found.append(
            f"{root} lies in {rule.path}, where systemd-tmpfiles deletes what is older than {rule.age}"
            f" ({rule.source}); add a line 'x {root}' to a file in /etc/tmpfiles.d"
        )
    return tuple(found)


def removes_ipc(configs: Iterable[str]) -> bool:
    """Whether logind removes IPC objects: the last assignment counts, and without any it does."""
    value = "yes"
    for text in configs:
        for match in re.finditer(r"^\s*RemoveIPC\s*=\s*(\S*)\s*$", text, re.MULTILINE):
            value = match[1] or "yes"
    return value.lower() in _TRUE


def parse_rules(configs: Iterable[tuple[str, str]]) -> tuple[Rule, ...]:
    """The ageing and sparing lines of tmpfiles.d files, given as (name, text) in order of their names."""
    rules: dict[str, Rule] = {}
    for source, text in configs:
        for line in text.splitlines():
            fields = line.split(None, 6)
            if len(fields) < 2 or fields[0].startswith("#") or "%" in fields[1]:
                continue
            kind, path = fields[0].rstrip(_MODIFIERS)[:1], fields[1].strip("\"'").rstrip("/") or "/"
            if kind == "x":  # X spares the folder alone, and what lies in it ages all the same
                rules.setdefault(path, Rule(path, None, source))
            elif kind in _AGEING:
                age = fields[5] if len(fields) > 5 else "-"
                rules.setdefault(path, Rule(path, None if age == "-" else age.lstrip("~"), source))
    return tuple(rules.values())


def ageing(path: str, rules: Sequence[Rule]) -> Rule | None:
    """The rule that ages ``path``: of all that cover it the one with the longest path decides."""
    covering = [rule for rule in rules if _covers(rule.path, path)]
    nearest = max(covering, key=lambda rule: len(rule.path), default=None)
    return nearest if nearest is not None and nearest.age is not None else None


def _covers(pattern: str, path: str) -> bool:
    places = [path, *map(str, PurePosixPath(path).parents)]
    if not any(char in pattern for char in "*?["):
        return pattern in places
    return any(fnmatch.fnmatchcase(place, pattern) for place in places)


def _configs(base: Path, main: str | None, folder: str) -> list[tuple[str, str]]:
    """(path, text) of a service's files in the order they count: a name in /etc hides that in /usr/lib."""
    files: dict[str, Path] = {}
    for root in reversed(_CONFIG_ROOTS):
        directory = base / root / folder
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            continue
        files.update({name: directory / name for name in names if name.endswith(".conf")})
    ordered = [files[name] for name in sorted(files)]
    if main is not None:
        ordered.insert(0, base / "etc" / main)
    return [
        ("/" + str(path.relative_to(base)), text) for path in ordered if (text := _text(path)) is not None
    ]


def _text(path: Path) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read(_LIMIT).decode("utf-8", "replace")
    except OSError:
        return None


def _is_login_user(uid: int, base: Path) -> bool:
    """Whether logind takes the uid for a person, and one that does not linger after the last session."""
    match = re.search(r"^\s*SYS_UID_MAX\s+([0-9]+)", _text(base / "etc/login.defs") or "", re.MULTILINE)
    if uid <= (int(match[1]) if match else _DEFAULT_SYS_UID_MAX) or uid == 65534:
        return False
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return True
    return not (base / "var/lib/systemd/linger" / name).exists()
