"""Bounds of the header reader, under ``ulimit -v`` of 1 GiB in a process of its own (VER-04, PER-04)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROLOGUE = """
import os, resource, struct, sys, time
from hwctl.weights.safetensors_file import Header, build_header, parse_header, read_header
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
def peak():
    # Not ru_maxrss: across fork and exec that still counts the parent's memory.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) >> 10
def read(path, **options):
    fd = os.open(path, os.O_RDONLY)
    return read_header(fd, os.fstat(fd).st_size, name="x", **options)
def hostile(path, start, piece, end=b"", size=99_000_000):
    body = start + piece * ((size - len(start) - len(end)) // len(piece)) + end
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(body)) + body)
    del body
    result = read(path)
    code = "Header" if isinstance(result, Header) else result[0].code
    print(code, peak())
"""


def run(script: str, *arguments: object) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("prefix", [2**63, 2**64 - 1, 100_000_001, 99_999_999, 1000])
def test_the_prefix_allocates_nothing(prefix: int, tmp_path: Path) -> None:
    script = f"""
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<Q", {prefix}) + b"{{}}")
print(read(sys.argv[1])[0].code)
"""
    (code,) = run(script, tmp_path / "x.safetensors")
    assert code == ("header-too-large" if prefix > 100_000_000 else "header-past-end")


ATTACKS = {
    "nested lists": ('b\'{"a":{"x":\'', "b'['", "header-not-json"),
    "empty lists": ('b\'{"a":{"x":[\'', "b'[],'", "header-not-json"),
    "one long name": ("b'{\"'", "b'a'", "header-not-json"),
    "escapes": ("b'{\"'", r"b'\\u00e9'", "header-not-json"),
    "one long shape": ('b\'{"a":{"shape":[\'', "b'1,'", "header-not-json"),
    "blanks": ("b''", "b' '", "header-not-json"),
    "digits": ('b\'{"a":{"x":\'', "b'9'", "header-not-json"),
    "wide characters": ("b'{\"'", r"b'\xf0\x9f\x98\x80'", "header-not-json"),
}


@pytest.mark.parametrize(("start", "piece", "code"), ATTACKS.values(), ids=ATTACKS.keys())
def test_hostile_headers_stay_within_memory(start: str, piece: str, code: str, tmp_path: Path) -> None:
    said, peak = run(f"hostile(sys.argv[1], {start}, {piece}, size=8_000_000)", tmp_path / "x")
    assert said == code
    assert int(peak) < 200


def test_memory_per_tensor(tmp_path: Path) -> None:
    """The cheapest entries there are; with HWCTL_LONG as many as a header can hold, within the same 1 GiB."""
    count = 1_700_000 if os.environ.get("HWCTL_LONG") else 300_000
    script = """
count = int(sys.argv[2])
entry = b'"%07d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
with open(sys.argv[1], "wb") as file:
    file.write(bytes(8) + b"{")
    for index in range(count):
        file.write(entry % index)
    file.seek(-1, os.SEEK_CUR)
    file.write(b"}")
    length = file.tell() - 8
    file.seek(0)
    file.write(struct.pack("<Q", length))
before = peak()
header = read(sys.argv[1])
print(len(header.tensors), peak() - before)
"""
    read_back, grown = run(script, tmp_path / "x.safetensors", count)
    assert int(read_back) == count
    assert int(grown) << 20 < count * 512


def test_a_finding_for_every_tensor(tmp_path: Path) -> None:
    """Hundreds of thousands of tensors on one byte, half of them of unknown dtypes: told in 202 lines."""
    script = """
with open(sys.argv[1], "wb") as file:
    file.write(bytes(8) + b"{")
    for index in range(300_000):
        file.write(b'"%d":["%s",[1],[0,1]],' % (index, b"U8" if index % 2 else b"X8"))
    file.write(b'"last":["U8",[1],[0,1]]}')
    length = file.tell() - 8
    file.seek(0)
    file.write(struct.pack("<Q", length))
before = peak()
findings = read(sys.argv[1], unknown_dtypes=False)
print(len(findings), peak() - before)
"""
    told, grown = run(script, tmp_path / "x.safetensors")
    assert int(told) == 202
    assert int(grown) << 20 < 300_000 * 512


def test_two_hundred_thousand_tensors(tmp_path: Path) -> None:
    """PER-04: parsed in seconds, memory follows the header; the floor of 3 s holds on a busy machine too."""
    script = """
names = [f"model.layers.{i // 1000}.mlp.experts.{i}.down_proj.weight" for i in range(200_000)]
raw, _entries = build_header([(name, "BF16", (7, 3)) for name in names], {"format": "pt"})
with open(sys.argv[1], "wb") as file:
    file.write(raw)
    file.truncate(len(raw) + 42 * len(names))
del raw, names, _entries
before = time.process_time()
header = read(sys.argv[1])
print(len(header.tensors), time.process_time() - before)
"""
    count, seconds = run(script, tmp_path / "x.safetensors")
    assert count == "200000"
    assert float(seconds) < 3


def test_a_hundred_gibibytes_are_not_read(tmp_path: Path) -> None:
    script = """
shape = (100 << 30,)
raw, _entries = build_header([("w", "U8", shape)], None)
with open(sys.argv[1], "wb") as file:
    file.write(raw)
    file.truncate(len(raw) + shape[0])
header = read(sys.argv[1])
print(header.data_bytes)
"""
    assert run(script, tmp_path / "x.safetensors") == [str(100 << 30)]
