"""The environment, read here and nowhere else. Options win over it, it wins over defaults.

``HWCTL_JOBS`` and ``HWCTL_WAIT`` are bound to their options in ``params``, so that they pass through the
same parsers and show up in the help.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

JOBS = "HWCTL_JOBS"
WAIT = "HWCTL_WAIT"


def roots() -> tuple[Path, ...]:
    """HWCTL_ROOTS, colon-separated; empty when it is not set. ``~`` is a home, as it is in options."""
    return tuple(
        Path(os.path.expanduser(root)) for root in os.environ.get("HWCTL_ROOTS", "").split(":") if root
    )


def metrics_dir() -> Path | None:
    """Where Prometheus' node exporter collects text files, if the operator said so."""
    value = os.environ.get("HWCTL_METRICS_DIR")
    return Path(os.path.expanduser(value)) if value else None


def debug() -> bool:
    """Whether a bug shows its traceback."""
    return os.environ.get("HWCTL_DEBUG", "") not in ("", "0")


def colourless() -> bool:
    """NO_COLOR (any non-empty value) or a terminal that cannot do more than print."""
    return bool(os.environ.get("NO_COLOR")) or dumb()


def dumb() -> bool:
    """A terminal on which nothing may be painted over."""
    return os.environ.get("TERM", "dumb") in ("dumb", "unknown", "")


def columns() -> int:
    """Width of the terminal: COLUMNS, else stdout's, else stderr's (stdout may lead to a pager), else 80."""
    said = shutil.get_terminal_size((0, 24)).columns
    try:
        return said or os.get_terminal_size(2).columns or 80
    except OSError:
        return 80


def lease_fds() -> tuple[int, ...]:
    """Descriptors of leases that ``hwctl exec`` handed to this process."""
    words = os.environ.get("HWCTL_LEASE_FDS", "").replace(",", " ").split()
    return tuple(int(word) for word in words if word.isdecimal() and int(word) < 1 << 31)
