"""Checks and lookup: every finding at once, faults kept apart from damage, and nothing written unasked."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hwctl.errors import Busy, IoFailed, Unsupported
from hwctl.fs.deadline import Deadline
from hwctl.fs.pace import TimedOut
from hwctl.stores.base import CheckOptions, Level, Report, State
from hwctl.stores.hostweights import canonical, leases, lookup, payload_checks
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.opening import Wanted, open_root
from hwctl.stores.hostweights.store import open_store
from hwctl.stores.hostweights.store_root import StoreRoot, look_at_root
from hwctl.stores.hostweights.verdict import Lookup, Outcome


def check(root: StoreRoot, level: Level = Level.FULL, **options: Any) -> Report:
    store = open_store(root.path)
    (artifact,) = [entry for entry in store.scan() if entry.path.parent.name == "artifacts"]
    return store.check(artifact, level, CheckOptions(**options))


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def seek(root: StoreRoot, identity: Identity, **options: Any) -> Lookup:
    found = lookup.lookup(root, identity, Level.FULL, Deadline.now(), **options)
    if found.lease is not None:
        found.lease.release()
    return found


def tree(root: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for path in [root, *root.rglob("*")]:
        st = path.lstat()
        found[str(path.relative_to(root))] = (st.st_mode, st.st_size, st.st_mtime_ns)
    return found


class Opened:
    """A directory that may be changed for the length of a with-block."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Path:
        self.mode = stat.S_IMODE(self.path.stat().st_mode)
        self.path.chmod(0o700)
        return self.path

    def __exit__(self, *_exc: object) -> None:
        self.path.chmod(self.mode)


def replace(path: Path, data: bytes) -> None:
    with Opened(path.parent):
        path.unlink()
        path.write_bytes(data)
        path.chmod(0o444)


def test_a_sound_artifact_has_no_findings_and_is_left_as_it_was(root: StoreRoot, artifact: Path) -> None:
    before = tree(root.path)
    for level in Level:
        report = check(root, level, jobs=2)
        assert report.findings == () and report.warnings == ()
    assert report.checked_bytes == sum(path.stat().st_size for path in artifact.glob("*.safetensors"))
    assert tree(root.path) == before


def test_every_finding_is_told_in_the_order_of_the_checks(root: StoreRoot, artifact: Path) -> None:
    ready = json.loads((artifact / "READY.json").read_bytes())
    ready["manifest_sha256"] = "0" * 64
    ready["publication_id"] = "п"
    replace(artifact / "READY.json", canonical.encode(ready))
    with Opened(artifact):
        (artifact / "notes.txt").write_bytes(b"x")
        (artifact / "one.safetensors").unlink()
    payload = artifact / "two.safetensors"
    data = payload.read_bytes()
    replace(payload, data[:-1] + b"\xff")
    payload.chmod(0o644)
    (root.path / "deny" / f"{artifact.name}.json").write_bytes(b"{}")
    artifact.chmod(0o1755)
    assert codes(check(root)) == [
        "denied",
        "invalidated",
        "writable",
        "missing-file",
        "undeclared-file",
        "manifest-digest",
        "writable",
        "digest-mismatch",
        "not-ascii",
    ]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "file-empty"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5\n",
            "lfs-pointer",
        ),
        (b"<!DOCTYPE html><html>", "html-page"),
        (b"PK\x03\x04" + b"\0" * 40, "zip-file"),
        (b"\0" * 4096, "all-zeros"),
    ],
)
def test_a_payload_that_is_something_else_is_called_that(
    root: StoreRoot, artifact: Path, data: bytes, code: str
) -> None:
    """VER-01."""
    replace(artifact / "two.safetensors", data)
    assert codes(check(root)) == ["size-mismatch", code]


@pytest.mark.parametrize("name", ["READY.json", "manifest.json", "two.safetensors"])
@pytest.mark.parametrize("odd", ["fifo", "socket", "directory", "link", "device"])
def test_odd_files_are_findings_at_once(root: StoreRoot, artifact: Path, name: str, odd: str) -> None:
    """vLLM-Omni hangs on a fifo with the lock held, and never heals from a socket."""
    path = artifact / name
    with Opened(artifact):
        path.unlink()
        match odd:
            case "fifo":
                os.mkfifo(path, 0o444)
            case "socket":
                with Opened(artifact):
                    here = os.open(artifact, os.O_RDONLY)
                    listener = socket.socket(socket.AF_UNIX)
                    listener.bind(f"/proc/self/fd/{here}/{name}")
                    listener.close()
                    os.close(here)
            case "directory":
                path.mkdir(0o555)
            case "link":
                path.symlink_to("/etc/hostname")
            case "device":
                try:
                    os.mknod(path, stat.S_IFCHR | 0o444, os.makedev(1, 5))
                except PermissionError:
                    pytest.skip("only root can make a device")
    found = codes(check(root))
    assert found[0] == ("symbolic-link" if odd == "link" else "not-regular")
    (row,) = open_store(root.path).scan()
    assert row.state is State.READY if name == "two.safetensors" else row.state is State.DAMAGED


def test_a_second_link_is_a_finding(root: StoreRoot, artifact: Path, tmp_path: Path) -> None:
    os.link(artifact / "two.safetensors", tmp_path / "second")
    assert codes(check(root, Level.SIZE)) == ["hard-linked"]
    assert codes(check(root, Level.MARKER)) == []


def test_a_flood_of_strange_names_makes_a_short_answer(root: StoreRoot, artifact: Path) -> None:
    """200,000 stray files make a 3 MB message and marker in vLLM-Omni."""
    with Opened(artifact):
        for number in range(2000):
            (artifact / f"{number:0200d}").touch()
    report = check(root)
    assert len(report.findings) < 100
    found = seek(root, identity_at(artifact), deny_invalid=True)
    assert found.outcome is Outcome.INVALID
    assert (root.path / "deny" / f"{artifact.name}.json").stat().st_size < 2000


def identity_at(artifact: Path) -> Identity:
    from publishing import identity_of

    return identity_of(json.loads((artifact / "manifest.json").read_bytes())["identity"])


def test_a_content_digest_that_does_not_follow_is_found(root: StoreRoot, artifact: Path) -> None:
    """Not looked at upstream: an edited entry, resealed, is a hit there at both levels."""
    manifest = json.loads((artifact / "manifest.json").read_bytes())
    manifest["tensors"][0]["role"] = "other"
    reseal(artifact, manifest)
    assert codes(check(root, Level.SIZE)) == []
    assert codes(check(root, Level.FULL)) == ["content-digest"]


def reseal(artifact: Path, manifest: dict[str, Any]) -> None:
    import hashlib

    data = canonical.encode(manifest)
    replace(artifact / "manifest.json", data)
    ready = json.loads((artifact / "READY.json").read_bytes())
    ready["manifest_sha256"] = hashlib.sha256(data).hexdigest()
    ready["artifact_content_sha256"] = manifest["artifact_content_sha256"]
    replace(artifact / "READY.json", canonical.encode(ready))


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("call", ["open", "preadv", "listdir"])
def test_a_fault_is_no_damage_and_denies_nobody(
    root: StoreRoot, artifact: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    """VER-10: a passing fault must not lead to a rebuild of 40 minutes."""
    identity = identity_at(artifact)
    real: Callable[..., Any] = getattr(os, call)

    def failing(what: Any, *args: Any, **options: Any) -> Any:
        hit = {
            "open": what == "two.safetensors",
            "preadv": True,
            "listdir": isinstance(what, int),
        }[call]
        if hit:
            raise OSError(number, os.strerror(number))
        return real(what, *args, **options)

    before = tree(root.path)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing)
        found = seek(root, identity, deny_invalid=True)
        with pytest.raises(IoFailed):
            check(root)
    assert found.outcome is Outcome.FAILED and found.failure is not None
    assert (str(found.failure.stage), str(found.failure.code)) == ("domain", "domain_unavailable")
    assert found.failure.retryable
    after = tree(root.path)
    assert {name: facts[:2] for name, facts in before.items()} == {
        name: facts[:2] for name, facts in after.items()
    }
    assert seek(root, identity).outcome is Outcome.HIT


def test_damage_is_told_even_where_another_file_cannot_be_read(
    root: StoreRoot, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = artifact / "one.safetensors"
    replace(path, path.read_bytes()[:-1] + b"\xff")
    real = os.open

    def failing(what: Any, *args: Any, **options: Any) -> int:
        if what == "two.safetensors":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(what, *args, **options)

    monkeypatch.setattr(os, "open", failing)
    report = check(root)
    assert codes(report) == ["digest-mismatch"]
    assert any("two.safetensors" in warning for warning in report.warnings)


def test_a_deadline_ends_a_check(root: StoreRoot, artifact: Path) -> None:
    with pytest.raises(TimedOut):
        check(root, Level.FULL, deadline=Deadline.now())
    assert check(root, Level.SIZE, deadline=Deadline.now()).valid


def test_a_check_without_a_lock_file_says_unleased(root: StoreRoot, artifact: Path) -> None:
    lock = leases.lock_path(root, artifact.name)
    lock.unlink()
    report = check(root)
    assert report.valid and [warning.split(":")[0] for warning in report.warnings] == ["unleased"]
    assert not lock.exists()


def test_an_exclusive_lock_makes_a_check_wait_and_then_busy(root: StoreRoot, artifact: Path) -> None:
    with open(leases.lock_path(root, artifact.name)) as lock:
        pid = os.fork()
        if pid == 0:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.write(1, b"")
            os.kill(os.getpid(), 19)  # stopped until it is killed
        os.waitpid(pid, os.WUNTRACED)
        try:
            with pytest.raises(Busy):
                check(root)
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def test_what_is_expected_is_held_against_it(root: StoreRoot, artifact: Path) -> None:
    import make_hostweights
    from publishing import identity_of

    assert codes(check(root, expected=identity_at(artifact))) == []
    report = check(root, expected=identity_of(make_hostweights.identity(2)))
    assert codes(report) == ["wrong-identity"] and "source.model_id" in report.findings[0].message
    with pytest.raises(Unsupported):
        check(root, expected="text")


def test_what_the_next_writer_makes_again_is_a_warning(root: StoreRoot, artifact: Path) -> None:
    (root.path / "domain.json").unlink()
    (root.path / "tmp").rmdir()
    report = check(root)
    assert report.valid and [warning.split()[0] for warning in report.warnings] == ["domain.json", "tmp"]


def test_folders_that_others_may_write_are_damage(root: StoreRoot, artifact: Path) -> None:
    (root.path / "artifacts").chmod(0o770)
    assert codes(check(root)) == ["writable"]


def test_a_damaged_store_has_no_valid_artifact(root: StoreRoot, artifact: Path) -> None:
    path = root.path / "domain.json"
    path.chmod(0o600)
    path.write_bytes(b"{")
    report = check(root)
    assert codes(report) == ["not-json"] and report.findings[0].file == str(path)


@pytest.mark.needs_root
def test_owners_are_judged_against_the_roots(root: StoreRoot, artifact: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(artifact / "two.safetensors", 12345, -1)
    assert codes(check(root, Level.SIZE)) == ["foreign-owner"]
    for path in [root.path, *root.path.rglob("*")]:
        os.chown(path, 12345, -1, follow_symlinks=False)
    assert check(root).valid


def test_without_trust_write_bits_do_not_matter(root: StoreRoot, artifact: Path) -> None:
    artifact.chmod(0o755)
    identity = identity_at(artifact)
    assert seek(open_root(root.path, Wanted(trusted=False)), identity).outcome is Outcome.HIT
    assert seek(look_at_root(root.path), identity).outcome is Outcome.INVALID


def test_the_librarys_word_is_heard_without_a_framework(tmp_path: Path) -> None:
    """safetensors judges a header before it loads what the tensors are wanted in; that order is relied on."""
    script = (
        "import os, sys\n"
        "from hwctl.stores.hostweights.payload_checks import _confirm\n"
        "for path in sys.argv[1:]:\n"
        "    print([found.code for found in _confirm(os.open(path, os.O_RDONLY), 'file')])\n"
        "print({'numpy', 'torch'} & set(sys.modules))\n"
    )
    good = (
        Path(__file__).parents[2] / "data" / "tiny-llama" / "model-00001-of-00002.safetensors"
    ).read_bytes()
    paths = [tmp_path / "good", tmp_path / "cut"]
    for path, data in zip(paths, (good, good[:-1]), strict=True):
        path.write_bytes(data)
    run = subprocess.run([sys.executable, "-c", script, *paths], capture_output=True, text=True)
    assert run.stdout.splitlines() == ["[]", "['container-refused']", "set()"], run.stderr


def test_a_safetensors_that_knows_the_framework_not_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 0.7 it says so of the one that is asked for first; that is no word about the file."""
    pytest.importorskip("numpy")
    monkeypatch.setattr(payload_checks, "_frameworks", lambda: ("no-such-framework", "numpy"))
    fd = os.open(Path(__file__).parents[2] / "data" / "tiny-llama" / "model-00001-of-00002.safetensors", 0)
    try:
        assert payload_checks._confirm(fd, "file") == []
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("document", "change", "reseal", "answer"),
    [
        ("manifest.json", {"schema_version": 2}, True, None),
        ("manifest.json", {"schema_version": 2, "added": 1}, True, None),
        ("manifest.json", {"schema_version": 2}, False, "manifest-digest"),
        ("READY.json", {"schema_version": 2, "added": 1}, False, None),
        ("READY.json", {"added": 1}, False, "unknown-field"),
    ],
)
def test_a_later_schema_is_unsupported_unless_no_version_would_leave_it_so(
    root: StoreRoot, artifact: Path, document: str, change: dict[str, Any], reseal: bool, answer: str | None
) -> None:
    """A script that met 65 here set sound artifacts of the next version aside; damage is 65 all the same."""
    data = canonical.encode(json.loads((artifact / document).read_bytes()) | change)
    replace(artifact / document, data)
    if reseal:
        ready = json.loads((artifact / "READY.json").read_bytes())
        ready["manifest_sha256"] = hashlib.sha256(data).hexdigest()
        replace(artifact / "READY.json", canonical.encode(ready))
    if answer is None:
        with pytest.raises(Unsupported, match="schema 2"):
            check(root)
        (root.path / "deny" / f"{artifact.name}.json").write_bytes(b"{}")
        answer = "denied"
    assert answer in codes(check(root))
