"""Running hwctl as a real process, as this user or as another one."""

from __future__ import annotations

import functools
import json
import os
import pty
import site
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource

import hwctl
from hwctl.cli.finding_codes import CODES

NOBODY = 65534
_REPOSITORY = Path(hwctl.__file__).parent.parent
_PACKAGES = [str(_REPOSITORY), *site.getsitepackages()]


@dataclass(frozen=True, slots=True)
class Run:
    """How a process ended. ``document`` is its stdout as JSON."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one document on stdout."""
        found: dict[str, Any] = json.loads(self.out)
        assert self.out.endswith("\n") and self.out.count("\n") == 1, self.out
        return found

    @property
    def results(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.document["results"]
        return found

    @property
    def error(self) -> dict[str, Any]:
        """The one error object on stderr."""
        found: dict[str, Any] = json.loads(self.err)
        assert self.err.endswith("\n") and self.err.count("\n") == 1, self.err
        return found


def command(*words: str | Path, uid: int | None = None) -> list[str]:
    return [interpreter(uid), "-P", "-m", "hwctl", *map(str, words)]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A clean environment: nothing of the caller's HWCTL_ variables, no terminal."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HWCTL_")}
    return kept | {"PYTHONPATH": ":".join(_PACKAGES), "TERM": "dumb"} | dict(extra or {})


def hwctl_(
    *words: str | Path,
    uid: int | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    pass_fds: Sequence[int] = (),
    timeout: float = 60,
) -> Run:
    """Run hwctl with these words and no terminal; ``uid`` makes it another user's process.

    Under --json every document and error object is held against its schema, whatever the outcome was.
    """
    done = subprocess.run(
        command(*words, uid=uid),
        input=stdin,
        capture_output=True,
        env=environment(env),
        user=uid,
        group=uid,
        extra_groups=None if uid is None else [],
        pass_fds=pass_fds,
        timeout=timeout,
        check=False,
        cwd="/",
    )
    run = Run(done.returncode, _text(done.stdout), _text(done.stderr))
    if "--json" in words and "--" not in words:
        _require_documents(run)
    return run


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _require_documents(run: Run) -> None:
    """What was printed is one document that its schema describes, and it agrees with the exit status."""
    if run.out:
        validator(run.document["schema"]).validate(run.document)
        assert run.document["exit_status"] == run.status
        found = [finding for row in run.results for finding in row.get("findings") or ()]
        assert {finding["code"] for finding in found} <= CODES.keys()
    if run.err:
        validator("hwctl.error/1").validate(run.error)
        assert run.status != 0


@functools.cache
def validator(schema: str) -> jsonschema.protocols.Validator:
    """The validator of a document's schema, from the package as it is installed."""
    name, _, number = schema.partition("/")
    folder = resources.files("hwctl") / "schemas"
    found = {path.name: json.loads(path.read_text()) for path in folder.iterdir()}
    registry = Registry().with_resources(
        (content["$id"], Resource.from_contents(content)) for content in found.values()
    )
    return jsonschema.Draft202012Validator(_told_in_full(found[f"{name}-{number}.json"]), registry=registry)


def _told_in_full(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, which now refuses a field that it does not name, in the document, its rows and totals.

    As published it is open, so that a script survives a new field; what we print, it has to describe.
    """
    parts = schema.get("properties", {})
    closed = {name: _closed(parts[name]) for name in ("totals",) if name in parts}
    if "results" in parts:
        closed["results"] = parts["results"] | {"items": _closed(parts["results"]["items"])}
    return _closed(schema | {"properties": parts | closed})


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    return {"allOf": [schema], "unevaluatedProperties": False}


def start(*words: str | Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """The same, without waiting for its end."""
    return subprocess.Popen(
        command(*words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(env),
        cwd="/",
    )


@contextmanager
def asked(*words: str | Path) -> Iterator[Callable[[], Run]]:
    """hwctl has made its plan and waits for a yes; the call gives it and returns how the run ended."""
    theirs, ours = pty.openpty()
    process = subprocess.Popen(
        command(*words),
        stdin=ours,
        stderr=ours,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd="/",
    )
    os.close(ours)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(theirs, 4096)

    def yes() -> Run:
        os.write(theirs, b"y\n")
        out, _ = process.communicate(timeout=30)
        return Run(process.returncode, out, said.decode())

    try:
        yield yes
    finally:
        os.close(theirs)
        process.kill()
        process.wait()


@functools.cache
def interpreter(uid: int | None = None) -> str:
    """A Python that ``uid`` can run hwctl with; skips the test where there is none.

    The tests' own interpreter may lie below a folder that only this user can enter.
    """
    if uid is None:
        return sys.executable
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    wanted = ".".join(map(str, sys.version_info[:2]))
    for python in (sys.executable, f"/usr/bin/python{wanted}", "/usr/bin/python3"):
        probe = f"import sys, hwctl.cli.app; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
        try:
            done = subprocess.run(
                [python, "-P", "-c", probe],
                env=environment(),
                user=uid,
                group=uid,
                extra_groups=[],
                capture_output=True,
                cwd="/",
                check=False,
            )
        except OSError:
            continue
        if done.returncode == 0:
            return python
    pytest.skip(f"uid {uid} can run no Python {wanted} with hwctl here")


def open_to_all(folder: Path) -> None:
    """Let every user look into a test's folder: pytest closes it, and those above it, to all but ours."""
    top = Path(tempfile.gettempdir())
    for path in (folder, *(parent for parent in folder.parents if top in parent.parents)):
        path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o055)
