"""The orders in which inspect can list entries."""

from __future__ import annotations

from enum import StrEnum


class Sort(StrEnum):
    KEY = "key"
    SIZE = "size"
    USED = "used"
