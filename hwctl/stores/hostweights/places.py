"""PATH as a host weight store knows it: the store itself, or an entry by the folder it lies in.

Names and marker files only; nothing is opened for its content.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hwctl.stores.hostweights import layout
from hwctl.stores.hostweights.layout import Place

_PLACES = {
    layout.ARTIFACTS: Place.ARTIFACT,
    layout.TMP: Place.STAGING,
    layout.QUARANTINE: Place.QUARANTINE,
    layout.DENY: Place.DENY,
}


@dataclass(frozen=True, slots=True)
class Spot:
    """One entry: the folder, its name there, and the key that rules it (None for a stranger)."""

    place: Place
    name: str
    key: str | None

    @property
    def label(self) -> str:
        """What the entry is listed under."""
        return self.name if self.key is None else self.key

    def path(self, root: Path) -> Path:
        return root / self.place.value / self.name if self.place.value else root / self.name


def is_root(path: Path) -> bool:
    """Whether a folder is a host weight store, as far as its own markers tell; any one may be missing."""
    folders = [name for name in layout.SUBDIRECTORIES if (path / name).is_dir()]
    documents = [name for name in (layout.DOMAIN, layout.POLICY) if os.path.lexists(path / name)]
    if len(folders) == len(layout.SUBDIRECTORIES):
        return True
    return layout.ARTIFACTS in folders and bool(documents)


def spot_in(place: Place, name: str) -> Spot:
    """What a name in one of the folders stands for."""
    key: str | None = None
    if place is Place.ARTIFACT and layout.is_key(name):
        key = name
    elif place is Place.STAGING and (staging := layout.parse_staging(name)) is not None:
        key = staging.key
    elif place is Place.QUARANTINE and (quarantined := layout.parse_quarantine(name)) is not None:
        key = quarantined.key
    elif place is Place.DENY:
        key = layout.parse_deny(name)
    return Spot(place, name, key)


def locate(path: Path) -> tuple[Path, Spot | None] | None:
    """(root, None) for a store, (root, spot) for an entry, None for what is neither. OSError passes through.

    An entry need not exist: its place is what counts.
    """
    try:
        return _locate(path)
    except PermissionError as exc:
        raise PermissionError(exc.errno, permission_denied(path), os.fspath(path)) from exc


def _locate(path: Path) -> tuple[Path, Spot | None] | None:
    if is_root(path):
        return path, None
    place = _PLACES.get(path.parent.name)
    if place is not None and is_root(path.parent.parent):
        return path.parent.parent, spot_in(place, path.name)
    if layout.is_document_temporary(path.name) and is_root(path.parent):
        return path.parent, Spot(Place.ROOT, path.name, None)
    return None


def permission_denied(path: Path) -> str:
    """Who may look there, since a store has one owner and "permission denied" names nobody (LEA-04)."""
    for folder in (path, *path.parents):
        try:
            owner = os.lstat(folder).st_uid
        except PermissionError:
            continue
        return f"permission denied: {folder} belongs to uid {owner}, the caller is uid {os.geteuid()}"
    return "permission denied"
