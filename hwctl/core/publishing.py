"""What the three ways of publishing have in common: the words for what became of it."""

from __future__ import annotations

import enum


class Publishing(enum.StrEnum):
    """What became of a publication; JOINED when another process published the same meanwhile."""

    PUBLISHED = "published"
    ALREADY_PUBLISHED = "already-published"
    JOINED = "joined"
    PLANNED = "planned"
