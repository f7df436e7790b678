"""Prometheus text files: what a run found, for node_exporter's textfile collector.

Written to a temporary beside the file, whose name does not end in ``.prom``, and renamed, so that nobody
reads a half of it; written when the run fails too, for a check that stopped reporting is the worst kind.
"""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hwctl.cli import environment
from hwctl.cli.document import valid
from hwctl.errors import IoFailed, Refused, from_os_error
from hwctl.fs.atomic import replace_document
from hwctl.fs.paths import kind_of

_MODE = 0o644


@dataclass(frozen=True, slots=True)
class Gauge:
    """One sample. ``name`` without the ``hwctl_`` prefix; all samples of a name share its ``help``."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def destination(metrics: Path | None, verb: str) -> Path | None:
    """Where a verb's metrics go: ``--metrics``, else its own file in HWCTL_METRICS_DIR, else nowhere."""
    folder = environment.metrics_dir()
    if metrics is None and folder is not None:
        return folder / f"hwctl-{verb}.prom"
    return metrics


def of_run(verb: str, exit_status: int, seconds: float) -> list[Gauge]:
    """What every run reports about itself."""
    labels = {"verb": verb}
    return [
        Gauge("run_exit_status", "Exit status of the last run; 0 is all well.", exit_status, labels),
        Gauge("run_duration_seconds", "How long the last run took.", round(seconds, 3), labels),
        Gauge("run_timestamp_seconds", "When the last run ended.", round(time.time(), 3), labels),
    ]


def render(gauges: Iterable[Gauge]) -> bytes:
    """The text exposition format: families in order of their first sample."""
    families: dict[str, list[Gauge]] = {}
    for gauge in gauges:
        families.setdefault(gauge.name, []).append(gauge)
    lines: list[str] = []
    for name, samples in families.items():
        lines += [f"# HELP hwctl_{name} {_help(samples[0].help)}", f"# TYPE hwctl_{name} gauge"]
        lines += [f"hwctl_{name}{_labels(sample.labels)} {_value(sample.value)}" for sample in samples]
    return ("\n".join(lines) + "\n").encode()


def write(path: Path, gauges: Sequence[Gauge]) -> None:
    """Replace ``path`` as a whole. Raises IoFailed, NoRoom, or Refused where no regular file stands there."""
    folder, name = path.parent, path.name
    if not name:
        raise IoFailed(f"cannot write metrics to {path}: it is a folder", path=path)
    try:
        # The collector's folder may well be a link.
        dir_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _require_file(dir_fd, path)
            replace_document(dir_fd, name, render(gauges), mode=_MODE)
        finally:
            os.close(dir_fd)
    except OSError as exc:
        raise from_os_error(exc, f"cannot write metrics to {path}", path) from exc


def _require_file(dir_fd: int, path: Path) -> None:
    """A rename would put a file in the place of /dev/stdout or /dev/null, for the whole machine."""
    try:
        mode = os.stat(path.name, dir_fd=dir_fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise Refused(f"cannot write metrics to {path}: it is a {kind_of(mode)}", path=path)


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_label(value)}"' for name, value in labels.items()) + "}"


def _label(value: str) -> str:
    return valid(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _value(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return repr(value) if math.isfinite(value) else "NaN"
