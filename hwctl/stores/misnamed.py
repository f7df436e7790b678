"""What a PATH is that names no store and no entry of one, and what would have to be named instead.

Asked only once every family has said that a path is not its own; owns the words for that. Names and marker
files decide here too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from hwctl.errors import HwctlError
from hwctl.stores.base import Family, Match
from hwctl.stores.hostweights import locating as hostweights
from hwctl.stores.ktint8 import layout, roots
from hwctl.stores.ktint8 import locating as ktint8
from hwctl.stores.pageweights import locating as pageweights
from hwctl.weights.checkpoint import is_checkpoint


def taken_for_one(settled: Path, family: Family | None) -> str:
    """The rest of the sentence that begins with the path."""
    if family is not None and (other := _first(settled, set(Family) - {family})) is not None:
        return f"is of the family {other.family}, no {family} store or artifact"
    around = _around(settled, family)
    if around is not None:
        instead = "an artifact in it" if around.key is None else f"the artifact {around.path}"
        return f"lies inside the store {around.root}; name that, or {instead}"
    if family is not Family.PAGEWEIGHTS and is_checkpoint(settled):
        return f"is a checkpoint; hwctl publish {family or Family.HOSTWEIGHTS} --from it makes an artifact"
    if family is not None:
        return f"is no {family} store or artifact"
    return "is no store or artifact of hostweights, ktint8 or pageweights"


def _around(settled: Path, family: Family | None) -> Match | None:
    """The store or entry that a path lies in, the innermost one."""
    if settled.name == layout.QUARANTINE and family in (None, Family.KTINT8):
        return Match(Family.KTINT8, settled.parent, settled.parent)
    families = set(Family) if family is None else {family}
    found = (_first(folder, families) for folder in settled.parents)
    return next((match for match in found if match is not None), None)


def _first(path: Path, families: Collection[Family]) -> Match | None:
    """What one of these families takes a path for; a folder that cannot be looked into is nobody's here."""
    for family, recognise in _RECOGNISE.items():
        if family in families:
            with suppress(HwctlError):
                if (match := recognise(path)) is not None:
                    return match
    return None


def _tree(folder: Path) -> Match | None:
    """The tree that a folder is. A base of trees holds other things as well, and what lies in one is not
    thereby the store's; nor is every folder above worth listing to find that it is one."""
    ours = roots.named(folder.name) or roots.markers_in(folder) or folder.parent.name == layout.QUARANTINE
    return ktint8.recognise(folder) if ours else None


_RECOGNISE: Mapping[Family, Callable[[Path], Match | None]] = {
    Family.HOSTWEIGHTS: hostweights.recognise,
    Family.PAGEWEIGHTS: pageweights.recognise,
    Family.KTINT8: _tree,
}
