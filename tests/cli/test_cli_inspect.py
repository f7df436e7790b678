"""``hwctl inspect`` as a process: rows for everything, damage included, and nothing read or changed."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import holders
import make_hostweights
import make_ktint8
import make_pageweights
import pytest
import run_hwctl

Run = Callable[..., run_hwctl.Run]


def snapshot(root: Path) -> dict[str, tuple[int, ...]]:
    """Everything about a tree that looking at it must not change."""
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        st = path.lstat()
        found[str(path)] = (st.st_mode, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns)
    return found


def safetensors(
    tensors: dict[str, tuple[str, list[int], int]], metadata: dict[str, str] | None = None
) -> bytes:
    """A header for tensors (dtype, shape, bytes), back to back; the data is left out."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    position = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


def test_rows_off_a_terminal_are_whole_records(hwctl: Run, base: Path, pages: Path) -> None:
    make_ktint8.make_staging(base, "job-dead-one", process=make_ktint8.dead_process())
    before = snapshot(base)
    done = hwctl("inspect", base, pages)
    assert done.status == 0
    records = [line.split("\t") for line in done.out.splitlines()]
    assert {len(record) for record in records} == {11}
    assert [record[0] for record in records] == ["ready", "ready", "staging", "ready", "ready", "ready"]
    assert [record[1] for record in records] == sorted(record[1] for record in records)
    assert "stale:" in records[2][9]
    assert snapshot(base) == before


def test_nothing_at_all_is_ok_and_a_folder_without_a_store_is_not(hwctl: Run, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert hwctl("inspect", empty).status == 10
    done = hwctl("inspect", "--json", empty, tmp_path / "absent")
    assert done.status == 10
    assert [row["state"] for row in done.document["results"]] == ["absent", "absent"]
    assert done.document["totals"]["states"] == {"absent": 2}


def test_default_roots_come_from_the_environment(hwctl: Run, base: Path, pages: Path) -> None:
    done = hwctl("inspect", "--json", env={"HWCTL_ROOTS": f"{base}:{pages}"})
    assert done.document["totals"]["states"] == {"ready": 5}
    assert [store["family"] for store in done.document["totals"]["stores"]] == ["ktint8", "pageweights"]


def test_damaged_rows_are_an_answer(hwctl: Run, base: Path, pages: Path) -> None:
    (base / "kt-int8-job-4711" / make_ktint8.MANIFEST).write_text("[]")
    next(pages.glob("*.locator.json")).write_text("{}")
    done = hwctl("inspect", base, pages, "--json")
    assert done.status == 0
    assert done.document["totals"]["damaged"] == 2
    for row in done.document["results"]:
        assert (row["state"] == "ready") == (row["reason"] is None)


def test_filters_and_orders(hwctl: Run, base: Path) -> None:
    make_ktint8.make_ready(base, "job-large", states=("ready", "ready"))
    keys = lambda *words: [  # noqa: E731
        row["key"] for row in hwctl("inspect", base, "--json", *words).document["results"]
    ]
    assert keys() == ["job-4711", "job-4712", "job-large"]
    assert keys("--match", "job-47*") == ["job-4711", "job-4712"]
    assert keys("--match", "*11", "--match", "*large") == ["job-4711", "job-large"]
    assert keys("--sort", "size")[0] == "job-large"
    assert keys("--state", "staging") == []
    assert hwctl("inspect", base, "--sort", "colour").status == 2
    assert hwctl("inspect", base, "--state", "fine").status == 2


def test_holders_are_seen_without_a_lock(hwctl: Run, base: Path) -> None:
    path = base / "kt-int8-job-4711"
    with holders.locked(path) as pid:
        (row,) = hwctl("inspect", path, "--json").document["results"]
        assert row["leases"] == {"shared": 1, "exclusive": 0, "pids": [pid]}
        assert f"{pid}" not in hwctl("inspect", path, "-q").out


def test_the_model_is_named_where_documents_know_it(
    hwctl: Run, base: Path, pages: Path, weights: Path
) -> None:
    models = {row["key"]: row["model"] for row in hwctl("inspect", base, pages, weights, "--json").results}
    assert models[make_hostweights.key_of(2)] == "org/model-2@r"
    source = make_pageweights.sha256(b"source object")
    assert models[make_pageweights.prefix_of(1)] == f"page 1 of {source}"
    assert models["job-4711"] is None
    lines = hwctl("inspect", base, weights).out.splitlines()
    assert sorted(line.split("\t")[-1] for line in lines) == [
        "-",
        "-",
        *(f"org/model-{n}@r" for n in range(3)),
    ]


def test_an_artifact_set_aside_keeps_its_model(hwctl: Run, weights: Path) -> None:
    folder = weights / "artifacts" / make_hostweights.key_of(1)
    assert hwctl("quarantine", folder, "--reason", "suspect", "--yes").status == 0
    (row,) = hwctl("inspect", weights, "--state", "quarantined", "--json").results
    assert row["model"] == "org/model-1@r"


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b'{"identity":{"source":{"model_id":"org/a"',
        b'{"identity" {"source":{"model_id":"org/a","revision":"r"}}}',
        b'{"identity":{"source":{"model_id":17,"revision":"r"}}}',
        b'{"identity":["source"]}',
        b'{"files":' + b"[" * 100_000,
        b'{"identity":{"source":{"model_id":"\xff\xfe","revision":"r"}}}',
        b'{"tensors":[' + b'{"dtype":"torch.float32"},' * 10_000,
    ],
)
def test_a_damaged_manifest_names_no_model(hwctl: Run, weights: Path, manifest: bytes) -> None:
    put_manifest(weights, 0, manifest)
    rows = {row["key"]: row for row in hwctl("inspect", weights, "--json").results}
    assert rows[make_hostweights.key_of(0)]["model"] is None
    assert rows[make_hostweights.key_of(1)]["model"] == "org/model-1@r"


def test_a_model_behind_megabytes_of_metadata(hwctl: Run, weights: Path) -> None:
    """Real identities hold a line a tensor, and other encoders other blanks and orders of keys."""
    odd = {"model_id": "org/\u2028\x1b[31m\u00e9", "revision": "", "metadata": ["x" * 80] * 40_000}
    put_manifest(weights, 0, json.dumps({"zz": [1, {}], "identity": {"source": odd}}, indent=1).encode())
    (row,) = hwctl("inspect", weights / "artifacts" / make_hostweights.key_of(0), "--json").results
    assert row["model"] == odd["model_id"]
    out = hwctl("inspect", weights).out
    assert "\torg/\\u2028\\x1b[31m\u00e9\n" in out


def put_manifest(root: Path, number: int, data: bytes) -> None:
    folder = root / "artifacts" / make_hostweights.key_of(number)
    folder.chmod(0o755)
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").write_bytes(data)
    folder.chmod(0o555)


def test_the_documents_of_an_entry(hwctl: Run, base: Path, pages: Path) -> None:
    (row,) = hwctl("inspect", base / "kt-int8-job-4711", "--manifest", "--json").document["results"]
    assert row["documents"][make_ktint8.MANIFEST]["run_id"] == "job-4711"
    text = hwctl("inspect", pages, "--manifest").out
    assert text.count("\ndocument\t") == 6
    (base / "kt-int8-job-4711" / make_ktint8.MANIFEST).write_bytes(b"[" * 100_000 + b"\x1b\xff")
    assert "\x1b" not in hwctl("inspect", base, "--manifest").out


def test_a_bare_file_is_told_by_its_header(hwctl: Run, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    head = safetensors(
        {"b": ("BF16", [2, 3], 12), "a": ("F4", [4], 2), "odd": ("Q3", [9], 5)}, {"format": "pt"}
    )
    file.write_bytes(head + bytes(19))
    done = hwctl("inspect", file, "--json")
    assert done.status == 0
    (row,) = done.document["results"]
    assert row["tensor_count"] == 3
    assert row["metadata"] == {"format": "pt"}
    assert [tensor["name"] for tensor in row["tensors"]] == ["b", "a", "odd"]
    assert row["findings"][0]["code"] == "unknown-dtype"
    assert hwctl("inspect", file, "--match", "a").out.splitlines()[-1] == "F4\t4\t2\ta"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "file-empty"),
        (b"1234", "file-too-short"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 42\n",
            "lfs-pointer",
        ),
        (b"<!DOCTYPE html><html></html>", "html-page"),
        (b"GGUF" + bytes(60), "gguf-file"),
        (bytes(4096), "all-zeros"),
    ],
)
def test_what_a_file_really_is(hwctl: Run, tmp_path: Path, content: bytes, code: str) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    done = hwctl("inspect", file, "--json")
    assert done.status == 0
    assert done.document["totals"]["damaged"] == 1
    assert done.document["results"][0]["findings"][0]["code"] == code


def test_a_hundred_gibibytes_and_many_tensors(tmp_path: Path) -> None:
    """PER-04: time and memory follow the header, not the payload."""
    sparse = tmp_path / "sparse.safetensors"
    sparse.write_bytes(safetensors({"w": ("U8", [100 << 30], 100 << 30)}))
    os.truncate(sparse, sparse.stat().st_size + (100 << 30))
    many = tmp_path / "many.safetensors"
    names = {f"model.layers.{number}.weight": ("F32", [2, 2], 16) for number in range(200_000)}
    many.write_bytes(safetensors(names) + bytes(16 * len(names)))
    for file, limit in ((sparse, 2.0), (many, 5.0)):
        for words in ((), ("--json",)):
            seconds, kilobytes = _measured("inspect", str(file), *words)
            assert kilobytes < 300 * 1024
            # The limit is for two idle cores; a test machine may be anything but idle.
            assert seconds < limit * 4


def _measured(*words: str) -> tuple[float, int]:
    """CPU seconds and peak memory in KiB of a run whose output goes nowhere."""
    code = (
        "import os, resource, subprocess, sys;"
        "command = [sys.executable, '-m', 'hwctl', *sys.argv[1:]];"
        "subprocess.run(command, stdout=subprocess.DEVNULL, check=True);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    seconds, kilobytes = done.stdout.split()
    return float(seconds), int(kilobytes)


def test_a_store_that_is_being_emptied_meanwhile(hwctl: Run, tmp_path: Path) -> None:
    root = make_pageweights.make_store(tmp_path / "busy")
    for number in range(50):
        make_pageweights.make_artifact(root, number)
        make_pageweights.put_lock(root, number)
    code = (
        "import os, sys\n"
        "for name in sorted(os.listdir(sys.argv[1])):\n"
        "    name.startswith('.') or os.unlink(os.path.join(sys.argv[1], name))\n"
    )
    for _ in range(3):
        rival = subprocess.Popen([sys.executable, "-S", "-c", code, str(root)])
        assert hwctl("inspect", root, "--json").status == 0
        assert hwctl("verify", root, "--level", "size", "--json").status in (0, 65)
        rival.wait(30)
        for number in range(50):
            make_pageweights.make_artifact(root, number)
        time.sleep(0.01)


def test_metrics_are_there_and_never_half(hwctl: Run, pages: Path, tmp_path: Path) -> None:
    target = tmp_path / "metrics" / "hwctl.prom"
    target.parent.mkdir()
    assert hwctl("inspect", pages, "--metrics", target).status == 0
    text = target.read_text()
    assert f'hwctl_store_entries{{family="pageweights",store="{pages}",state="ready"}} 3' in text
    assert 'hwctl_run_exit_status{verb="inspect"} 0' in text
    assert hwctl("verify", tmp_path / "absent", "--metrics", target).status == 10
    assert 'hwctl_run_exit_status{verb="verify"} 10' in target.read_text()
    assert hwctl("verify", pages, env={"HWCTL_METRICS_DIR": str(target.parent)}).status == 0
    assert sorted(os.listdir(target.parent)) == ["hwctl-verify.prom", "hwctl.prom"]
    failed = hwctl("inspect", pages, "--metrics", tmp_path / "absent" / "x.prom", "--json")
    assert failed.status == 15
    assert len(failed.document["results"]) == 3


def test_a_payload_that_was_cut_or_lost_is_damaged_at_a_glance(hwctl: Run, weights: Path) -> None:
    """What a stat shows; that its bytes are right is for verify to say."""
    artifact = weights / "artifacts" / make_hostweights.key_of(0)
    payload = artifact / "model.safetensors"
    size = payload.stat().st_size
    payload.chmod(0o644)
    os.truncate(payload, 100)
    (row,) = hwctl("inspect", weights, "--state", "damaged", "--json").results
    assert row["reason"] == f"model.safetensors has 100 bytes, declared are {size}"
    artifact.chmod(0o755)
    payload.unlink()
    artifact.chmod(0o555)
    (row,) = hwctl("inspect", artifact, "--json").results
    assert (row["state"], row["reason"]) == ("damaged", "'model.safetensors' is declared and not there")


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"{",
        b"[]",
        b'{"files":3}',
        b'{"files":[1]}',
        b'{"files":[{"file_name":"../x","size":1}]}',
        b'{"files":[{"file_name":"a","size":true}]}',
        b'{"files":' + b"[" * 90000,
    ],
)
def test_what_is_no_manifest_makes_no_artifact_ready(hwctl: Run, weights: Path, manifest: bytes) -> None:
    path = weights / "artifacts" / make_hostweights.key_of(0) / "manifest.json"
    path.chmod(0o644)
    path.write_bytes(manifest)
    path.chmod(0o444)
    (row,) = hwctl("inspect", path.parent, "--json").results
    assert (row["state"], row["model"]) == ("damaged", None)
    assert "manifest.json" in row["reason"]


def test_a_sealed_manifest_that_names_no_file_hides_no_store(hwctl: Run, weights: Path) -> None:
    artifact = weights / "artifacts" / make_hostweights.key_of(0)
    for name in ("manifest.json", "READY.json"):
        (artifact / name).chmod(0o644)
    manifest = json.loads((artifact / "manifest.json").read_bytes())
    manifest["files"][0]["file_name"] = 10**30
    sealed = make_hostweights.canonical(manifest)
    ready = json.loads((artifact / "READY.json").read_bytes())
    ready["manifest_sha256"] = make_hostweights.sha256(sealed)
    (artifact / "manifest.json").write_bytes(sealed)
    (artifact / "READY.json").write_bytes(make_hostweights.canonical(ready))
    for name in ("manifest.json", "READY.json"):
        (artifact / name).chmod(0o444)
    run = hwctl("inspect", weights, "--json")
    assert run.status == 0
    assert [row["state"] for row in run.results].count("damaged") == 1


def test_a_long_manifest_is_not_parsed_for_a_row(hwctl: Run, weights: Path) -> None:
    """Sealed bytes are what a publisher wrote; only what does not fit its seal is gone through."""
    artifact = weights / "artifacts" / make_hostweights.key_of(0)
    for name in ("other.bin", "model.safetensors"):
        path = artifact / name
        artifact.chmod(0o755)
        if path.exists():
            path.chmod(0o644)  # nobody may write to a payload
        else:
            path.write_bytes(b"")
        artifact.chmod(0o555)
        (row,) = hwctl("inspect", artifact, "--json").results
        assert row["state"] == "damaged" and name in row["reason"]
        artifact.chmod(0o755)
        if name == "other.bin":
            path.unlink()
        artifact.chmod(0o555)


POLICY = json.dumps(
    {
        "schema_version": 2,
        "policy_version": 1,
        "max_artifact_bytes": None,
        "max_store_bytes": None,
        "min_free_bytes": 0,
        "eviction": "none",
    }
)


@pytest.mark.parametrize(
    ("name", "content"), [("domain.json", "{}"), ("domain-policy.json", POLICY), ("mode", "")]
)
def test_a_store_that_nobody_opens_is_said_to_be_one(
    hwctl: Run, weights: Path, store: Path, name: str, content: str
) -> None:
    """With artifacts it is theirs; an empty one is damaged all the same, and not "nothing to check"."""
    for root in (weights, store):
        if name == "mode":
            root.chmod(0o777)
        else:
            (root / name).unlink(missing_ok=True)
            (root / name).write_text(content)
        run = hwctl("inspect", root, "--json")
        assert run.status == 0
        assert any("no reader opens this store" in warning for warning in run.document["warnings"])
        run = hwctl("verify", root, "--json")
        assert run.status == (13 if name == "domain-policy.json" else 65)
        assert {row["store"] for row in run.results} == {str(root)}
    (row,) = hwctl("verify", store, store, "--json").results
    assert (row["path"], row["state"]) == (str(store), "damaged")
    told = hwctl("verify", weights)
    assert "hwctl quarantine" not in told.err  # setting a sound artifact aside mends no store


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make other users' files")
def test_what_its_owner_cannot_read_is_not_ready(hwctl: Run) -> None:
    with tempfile.TemporaryDirectory(prefix="hwctl-unreadable-") as name:
        Path(name).chmod(0o755)
        weights = make_hostweights.make_store(Path(name) / "weights")
        make_hostweights.make_artifact(weights, 0)
        manifest = weights / "artifacts" / make_hostweights.key_of(0) / "manifest.json"
        manifest.chmod(0)
        for path in (weights, *weights.rglob("*")):
            os.chown(path, run_hwctl.NOBODY, run_hwctl.NOBODY, follow_symlinks=False)
        (row,) = hwctl("inspect", manifest.parent, "--json", uid=run_hwctl.NOBODY).results
        assert (row["state"], "manifest.json" in row["reason"]) == ("unreadable", True)
