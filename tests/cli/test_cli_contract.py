"""The rules every command keeps: usage, documents in every outcome, closed pipes, signals, terminals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import holders
import make_hostweights
import make_ktint8
import make_pageweights
import pytest
import run_hwctl
from terminal import on_a_terminal
from waiting import opens_below, until

from hwctl.cli.app import tree
from hwctl.cli.grammar import Verb

Run = Callable[..., run_hwctl.Run]
TINY = Path(__file__).parents[1] / "data" / "tiny-llama"
LEAVES = [verb for verb in tree().walk() if not verb.verbs]


def ids(verb: Verb) -> str:
    return verb.name


# Usage: refused before anything is touched.


@pytest.mark.parametrize("verb", LEAVES, ids=ids)
def test_usage_errors_are_2_and_one_object_wherever_json_stands(verb: Verb, hwctl: Run, pages: Path) -> None:
    before = sorted(os.listdir(pages))
    for arguments in (["--json", "--no-such-option", pages], [pages, "--color", "sometimes", "--json"]):
        done = hwctl(*verb.path[1:], *arguments)
        assert done.status == 2, (arguments, done)
        assert done.out == ""
        assert done.error["code"] == "usage"
    text = hwctl(*verb.path[1:], "--no-such-option")
    assert text.status == 2
    assert text.err.count("\n") == 1
    assert text.err.startswith(f"{verb.name}: ")
    assert sorted(os.listdir(pages)) == before


@pytest.mark.parametrize(
    "words",
    [
        ["verify", "ODD", "--authority", "gone.json"],
        ["verify", "ODD", "--expect", "a\n\x1b[31m"],
        ["verify", "--paths-from", "ODD"],
        ["inspect", "--no\n\x1b[31m"],
        ["no\n\x1b[31m"],
    ],
    ids=" ".join,
)
def test_a_usage_error_is_one_line_whatever_it_tells_of(words: list[str], hwctl: Run, tmp_path: Path) -> None:
    """Rule 6: names from the disk and from argv alike."""
    odd = tmp_path / "w\n\x1b[31mred\x1b]0;t\x07"
    make_pageweights.make_artifact(make_pageweights.make_store(odd), 0)
    run = hwctl(*(odd if word == "ODD" else word for word in words))
    assert run.status == 2
    assert len(run.err.splitlines()) == 1
    assert not set(run.err[:-1]) & {chr(code) for code in (*range(32), 127)}


@pytest.mark.parametrize("bad", [["--json=1"], ["--family", "colour"], ["--jsom"], ["--level", "deep"]])
def test_the_parsers_own_refusals_are_objects_too(bad: list[str], hwctl: Run, pages: Path) -> None:
    for arguments in ([*bad, "--json"], ["--json", pages, *bad]):
        done = hwctl("verify", *arguments)
        assert (done.status, done.error["exit_status"], done.out) == (2, 2, "")


@pytest.mark.parametrize(
    "words",
    [
        ["verify"],
        ["verify", ""],
        ["verify", "PAGES", "--level", ""],
        ["verify", "PAGES", "--jobs", ""],
        ["verify", "PAGES", "--jobs", "0"],
        ["verify", "PAGES", "--wait", "0s"],
        ["verify", "PAGES", "--wait", "5m"],
        ["verify", "PAGES", "--wait", "nan"],
        ["verify", "PAGES", "--timeout", "-1s"],
        ["verify", "PAGES", "--rate", "1G"],
        ["verify", "PAGES", "--metrics", ""],
        ["verify", "PAGES", "--paths-from", ""],
        ["verify", "PAGES", "-0"],
        ["verify", "PAGES", "-q", "-v"],
        ["verify", "PAGES", "--authority", "a", "--identity", "b"],
        ["verify", "PAGES", "--numa", "2"],
        ["verify", "PAGES", "--wait", "1s", "--wait"],
        ["inspect", "PAGES", "--match", ""],
        ["inspect", "PAGES", "--sort", "colour"],
        ["inspect", "PAGES", "--manifest=yes"],
        ["evict", "PAGES"],
        ["evict", "PAGES", "--max-size", "200G"],
        ["evict", "PAGES", "--max-size", "0"],
        ["evict", "PAGES", "--keep", "0"],
        ["evict"],
        ["quarantine", "PAGES"],
        ["quarantine", "PAGES", "--reason", ""],
        ["exec", "PAGES"],
        ["publish"],
        ["publish", "colour"],
        ["colour"],
        [],
        ["--colour"],
        ["--version", "verify", "PAGES"],
        ["--version", "--colour"],
    ],
    ids=" ".join,
)
def test_senseless_calls(words: list[str], hwctl: Run, pages: Path) -> None:
    before = sorted(os.listdir(pages))
    done = hwctl(*(str(pages) if word == "PAGES" else word for word in words))
    assert done.status == 2, done
    assert done.out == ""
    assert done.err
    assert sorted(os.listdir(pages)) == before


def test_options_stand_before_or_after_the_path(hwctl: Run, pages: Path) -> None:
    options = ["--level", "size", "--family", "pageweights", "--color", "never"]
    assert hwctl("verify", *options, pages).out == hwctl("verify", pages, *options).out
    assert hwctl("verify", pages, "--family", "ktint8").status == 10
    assert hwctl("verify", *options, "--", pages).status == 0


def test_the_family_is_taken_at_its_word(hwctl: Run, pages: Path) -> None:
    for family, code in (("pageweights", 0), ("hostweights", 10), ("ktint8", 10)):
        assert hwctl("inspect", pages, "--family", family, "--json").status == code


# Every status in a real process.


def test_unsupported_schema_is_13(hwctl: Run, base: Path) -> None:
    path = base / "kt-int8-job-4711" / make_ktint8.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 9}))
    done = hwctl("verify", path.parent, "--json")
    assert done.status == 13
    assert done.error["code"] == "unsupported"


def test_a_target_out_of_reach_is_14(hwctl: Run, pages: Path) -> None:
    with holders.locked(pages / f".{make_pageweights.prefix_of(1)}.lock"):
        done = hwctl("evict", pages, "--max-size", "1", "-y", "--json")
    assert done.status == 14
    assert done.error["code"] == "no-room"
    assert len(list(pages.glob("*.locator.json"))) == 1


def test_a_bug_is_70_with_a_hint_and_a_traceback_on_request(hwctl: Run, pages: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import hwctl.core.inspect as it\ndef view(store): raise KeyError('oops')\nit.view = view\n"
    )
    path = run_hwctl.environment()["PYTHONPATH"]
    env = {"PYTHONPATH": f"{broken}:{path}"}
    done = hwctl("inspect", pages, env=env)
    assert done.status == 70
    assert "KeyError" in done.err
    assert "HWCTL_DEBUG=1" in done.err
    assert "Traceback" not in done.err
    debug = hwctl("inspect", pages, env=env | {"HWCTL_DEBUG": "1"})
    assert "Traceback" in debug.err
    document = hwctl("inspect", pages, "--json", env=env)
    assert document.status == 70
    assert document.error["code"] == "internal"
    assert "traceback" not in document.error["details"]


# Names that bite (CLI-02).

HOSTILE = [b"\x1b[2J\x1b]0;title\x07", b"line\nbreak", "\u202egnp".encode(), b"\xff\xfe", b"[b]", b"a\x9bb"]


@pytest.mark.parametrize("raw", HOSTILE, ids=repr)
def test_hostile_names_are_spelled_out(hwctl: Run, pages: Path, tmp_path: Path, raw: bytes) -> None:
    name = os.fsdecode(raw)
    Path(pages, name).write_bytes(b"")
    lost = tmp_path / name
    for done in (
        hwctl("inspect", pages, "--color", "always"),
        hwctl("verify", lost),
        hwctl("inspect", pages, lost),
        hwctl("evict", pages, "--all", "--match", name, "-n"),
    ):
        text = (done.out + done.err).replace("\x1b[31m", "").replace("\x1b[32m", "")
        for code in ("\x1b[33m", "\x1b[2m", "\x1b[1m", "\x1b[0m"):
            text = text.replace(code, "")
        assert text.replace("\t", "").replace("\n", "").isprintable(), text
    assert hwctl("inspect", pages).out.count("\n") == 4
    done = hwctl("inspect", pages, "--json")
    (row,) = [row for row in done.document["results"] if row["state"] == "foreign"]
    assert ("path_b64" in row) == (raw == b"\xff\xfe" or raw == b"a\x9bb")


# Readers that go away (CLI-04).


def piped(*words: str | Path, stdout: int) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        run_hwctl.command(*words),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=run_hwctl.environment(),
        timeout=60,
    )


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["inspect", "PAGES"], 141),
        (["inspect", "PAGES", "--json"], 141),
        (["verify", "PAGES", "--level", "size"], 141),
        (["verify", "BASE", "--level", "size"], 65),
        (["inspect", "ABSENT"], 10),
        (["--help"], 141),
        (["--version"], 141),
        (["evict", "PAGES", "--all", "-n"], 0),
    ],
    ids=str,
)
def test_a_reader_that_left(words: list[str], status: int, pages: Path, base: Path, tmp_path: Path) -> None:
    next((base / "kt-int8-job-4711").rglob("*quant_.kt")).write_bytes(b"")
    places = {"PAGES": pages, "BASE": base, "ABSENT": tmp_path / "absent"}
    done = piped(*(places.get(word, word) for word in words), stdout=closed_pipe())
    assert done.returncode == status
    assert b"Traceback" not in done.stderr
    assert b"Broken pipe" not in done.stderr


def test_a_deleting_verb_finishes_whoever_reads(pages: Path) -> None:
    assert piped("evict", pages, "--all", "-y", stdout=closed_pipe()).returncode == 0
    assert not list(pages.glob("*.locator.json"))


@pytest.mark.parametrize("how", [">&-", ">/dev/full"])
def test_a_stdout_that_cannot_be_written(pages: Path, how: str) -> None:
    """15; but where work was done, nobody wanted to read what a closed stdout would have said (CLI-04)."""

    def status(*words: str | Path) -> int:
        line = f"exec {subprocess.list2cmdline(run_hwctl.command(*words))} {how}"
        run = subprocess.run(
            ["sh", "-c", line], env=run_hwctl.environment(), timeout=60, stderr=subprocess.PIPE, text=True
        )
        if run.returncode and words != ("--help",):
            told = json.loads(run.stderr) if "--json" in words else {"exit_status": 15, "message": run.stderr}
            assert told["exit_status"] == 15 and "stdout cannot be written: " in told["message"]
        return run.returncode

    assert status("inspect", pages) == 15
    assert status("inspect", pages, "--json") == 15
    assert status("--help") == 15
    assert status("evict", pages, "--all", "-n") == 15
    metrics = pages.parent / "hwctl.prom"
    for words in (
        ["evict", pages, "--keep", "2", "--metrics", metrics],
        ["reclaim-stale", pages, "--json"],
        ["evict", pages, "--all"],
    ):
        assert status(*words, "-y") == (0 if how == ">&-" else 15), words
    assert f'hwctl_run_exit_status{{verb="evict"}} {0 if how == ">&-" else 15}' in metrics.read_text()
    assert not list(pages.glob("*.locator.json"))


def test_head_takes_what_it_wants(pages: Path) -> None:
    line = f"{subprocess.list2cmdline(run_hwctl.command('inspect', pages))} | head -1"
    done = subprocess.run(["bash", "-c", line], env=run_hwctl.environment(), capture_output=True, timeout=60)
    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""


# Signals.


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A store that takes long to check at a low rate."""
    root = make_hostweights.make_store(tmp_path / "slow")
    make_hostweights.make_artifact(root, 1, floats=3_000_000)
    return root


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("json_", [False, True])
def test_a_signal_ends_the_run_and_the_process_dies_of_it(slow: Path, name: str, json_: bool) -> None:
    number = getattr(signal, name)
    words = ["verify", slow, "--rate", "1MB", *(["--json"] if json_ else [])]
    process = run_hwctl.start(*words)
    until(lambda: opens_below(process.pid, slow))
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == -number
    assert "Traceback" not in err
    if json_:
        document = json.loads(out)
        run_hwctl.validator("hwctl.verify/1").validate(document)
        error = json.loads(err)
        run_hwctl.validator("hwctl.error/1").validate(error)
        for told, word in ((document, "status"), (error, "code")):
            assert (told[word], told["exit_status"]) == ("signal", 128 + number)
    assert name in err


def test_a_second_signal_ends_at_once(slow: Path) -> None:
    """The first one's document finds no reader, so that the run would never come to its end."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    words = run_hwctl.command("verify", slow, "--rate", "1MB", "--json")
    process = subprocess.Popen(words, stdout=writer, env=run_hwctl.environment())
    until(lambda: opens_below(process.pid, slow))
    process.send_signal(signal.SIGTERM)
    until(lambda: not opens_below(process.pid, slow))
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) in (-signal.SIGTERM, -signal.SIGINT)
    os.close(reader)
    os.close(writer)


def test_an_ignored_hangup_stays_ignored(slow: Path) -> None:
    line = "trap '' HUP; exec " + subprocess.list2cmdline(
        run_hwctl.command("verify", slow, "--level", "marker", "--json")
    )
    process = subprocess.Popen(
        ["sh", "-c", line], env=run_hwctl.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    for _ in range(5):
        time.sleep(0.05)
        process.send_signal(signal.SIGHUP)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_waiting_for_a_lock_can_be_interrupted(base: Path) -> None:
    path = base / "kt-int8-job-4711"
    with holders.locked(path, "exclusive"):
        process = run_hwctl.start("verify", path, "--wait", "1h")
        until(lambda: opens_below(process.pid, path))
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM


# Terminals.


def test_tables_fit_the_terminal_and_colours_repeat_a_word(pages: Path, base: Path) -> None:
    Path(pages, "stranger-" + "x" * 100).write_bytes(b"")
    (base / "kt-int8-job-4711" / make_ktint8.MANIFEST).write_text("{}")
    for columns in (60, 80, 120):
        plain = on_a_terminal("inspect", pages, base, env={"NO_COLOR": "1"}, columns=columns)
        assert "\x1b" not in plain
        tables = [
            line for line in plain.splitlines() if line.split()[:1] in (["ready"], ["foreign"], ["STATE"])
        ]
        assert len(tables) == 7
        assert max(map(len, tables)) <= columns
    coloured = on_a_terminal("inspect", pages, base)
    assert "\x1b[32mready\x1b[0m" in coloured
    assert "\x1b[31mdamaged\x1b[0m" in coloured


def test_a_dumb_terminal_gets_plain_text(slow: Path) -> None:
    shown = on_a_terminal("verify", slow, "--rate", "10MB", env={"TERM": "dumb"})
    assert "\x1b" not in shown
    assert "\r" not in shown


def test_progress_is_for_terminals_that_were_not_asked_to_be_quiet(slow: Path) -> None:
    shown = on_a_terminal("verify", slow, "--rate", "10MB")
    assert "\r\x1b[Kverify [" in shown
    assert "/s" in shown
    assert shown.rstrip("\n").splitlines()[-1].startswith("verified 1 artifact")
    for words in (["-q"], ["--json"]):
        assert "\r" not in on_a_terminal("verify", slow, "--rate", "10MB", *words)
    assert "\r" not in run_hwctl.hwctl_("verify", slow).err


def test_progress_is_where_bytes_are_read(tmp_path: Path) -> None:
    """exec and --restore verify in full before anything else: what takes long is that."""
    root = make_hostweights.make_store(tmp_path / "large")
    folder = make_hostweights.make_sparse(root, 1, 1024)
    shown = on_a_terminal("exec", folder, "--", "echo", "here")
    assert re.search(r"\r\x1b\[Kverify \[.*/s", shown)
    assert shown.endswith("\r\x1b[Khere\n")
    assert run_hwctl.hwctl_("quarantine", folder, "--reason", "a test", "-y").status == 0
    (aside,) = (root / "quarantine").iterdir()
    shown = on_a_terminal("quarantine", "--restore", aside, "-y")
    assert re.search(r"\r\x1b\[Kquarantine \[.*of 1\.00 GiB.*/s", shown)
    assert folder.is_dir()


def test_quiet_is_asked_with_the_plan_and_json_not_at_all(weights: Path) -> None:
    key = make_hostweights.key_of(0)
    folder = weights / "artifacts" / key
    for words in (
        ["evict", folder],
        ["quarantine", folder, "--reason", "a test"],
        ["evict", weights, "--all"],
    ):
        shown = on_a_terminal(*words, "-q", typed=b"n\n", status=12)
        before, asked, _ = shown.partition("[y/N]")
        assert asked and str(folder) in "".join(before.split()), shown
        shown = on_a_terminal(*words, "--json", status=12)
        assert "[y/N]" not in shown and "--json asks nobody; --yes says it in advance" in shown
        assert len(shown.splitlines()) == 2  # the document, and the one error object
    assert folder.is_dir()


def test_a_person_is_asked_and_anything_but_yes_is_no(pages: Path) -> None:
    for typed, status, left in ((b"\n", 12, 3), (b"n\n", 12, 3), (b"\x04", 12, 3), (b"yes\n", 0, 0)):
        shown = on_a_terminal("evict", pages, "--all", typed=typed, status=status)
        assert "[y/N]" in shown
        assert len(list(pages.glob("*.locator.json"))) == left


def test_nobody_is_asked_where_nobody_can_answer(hwctl: Run, pages: Path) -> None:
    before = time.monotonic()
    done = hwctl("evict", pages, "--all", "--json")
    assert done.status == 12
    assert time.monotonic() - before < 20
    assert "--yes" in done.error["message"]
    assert len(list(pages.glob("*.locator.json"))) == 3


def test_colour_by_option_wins_over_the_environment(hwctl: Run, pages: Path) -> None:
    assert "\x1b[" in hwctl("inspect", pages, "--color", "always", env={"NO_COLOR": "1"}).out
    assert "\x1b[" not in on_a_terminal("inspect", pages, "--color", "never")


# What is loaded (DEP-01, DEP-02).


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["--help"],
        *[[*verb.path[1:], "--help"] for verb in LEAVES],
        ["inspect", "PAGES"],
        ["inspect", "WEIGHTS"],
        ["inspect", "BASE", "--json"],
        ["verify", "WEIGHTS"],
        ["verify", "WEIGHTS", "--level", "size"],
        ["verify", "PAGES", "--level", "size"],
        ["verify", "BASE", "--level", "size"],
        ["quarantine", "ONE", "--reason", "test", "-y"],
        ["reclaim-stale", "BASE", "-y"],
        ["evict", "PAGES", "--keep", "1", "-y"],
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_loaded_by_what_computes_no_tensors(
    words: list[str], pages: Path, base: Path, weights: Path
) -> None:
    places = {"PAGES": pages, "BASE": base, "WEIGHTS": weights, "ONE": base / "kt-int8-job-4711"}
    command = run_hwctl.command(*(places.get(word, word) for word in words))
    command[1:1] = ["-X", "importtime"]
    done = subprocess.run(command, capture_output=True, text=True, env=run_hwctl.environment(), timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert not loaded & {"torch", "numpy", "rich", "orjson", "asyncio"}
    assert ("safetensors" in loaded) == (words == ["verify", "WEIGHTS"])  # it confirms at the full level


@pytest.fixture
def without_torch(tmp_path: Path) -> dict[str, str]:
    """An environment in which torch, numpy and safetensors cannot be imported, whoever tries."""
    for name in ("torch", "numpy", "safetensors"):
        package = tmp_path / "absent" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(
            f"raise ModuleNotFoundError('No module named {name}', name='{name}')\n"
        )
    return {"PYTHONPATH": f"{tmp_path / 'absent'}:{run_hwctl.environment()['PYTHONPATH']}"}


def test_the_slim_install_does_all_but_compute_tensors(
    hwctl: Run, pages: Path, base: Path, weights: Path, without_torch: dict[str, str]
) -> None:
    for root in (pages, base, weights):
        assert hwctl("inspect", root, env=without_torch).status == 0
        done = hwctl("verify", root, "--json", env=without_torch)
        assert done.status == 0, done
        assert {row["content"] for row in done.document["results"]} <= {"not-checked", "not-asked", "checked"}
    tree_ = base / "kt-int8-job-4711"
    assert hwctl("quarantine", tree_, "--reason", "why", "-y", env=without_torch).status == 0
    assert hwctl("quarantine", base, "--restore", "job-4711", "-y", env=without_torch).status == 0
    assert hwctl("reclaim-stale", base, "-y", env=without_torch).status == 0
    assert hwctl("exec", tree_, "--", "true", env=without_torch).status == 0
    for root in (pages, base, weights):
        assert hwctl("evict", root, "--all", "-y", env=without_torch).status == 0
    words = ("publish", "hostweights", "--from", TINY, "--store", weights, "-y")
    assert hwctl(*words, env=without_torch).status == 0


def test_python_that_is_too_old_is_told_so() -> None:
    code = (
        "import runpy, sys\n"
        "class Old(tuple):\n    major, minor = 3, 9\n"
        "sys.version_info = Old((3, 9, 0))\n"
        "runpy.run_module('hwctl', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=run_hwctl.environment(), timeout=60
    )
    assert done.returncode == 13
    assert "needs Python 3.11" in done.stderr


def test_the_version_and_those_of_the_libraries(hwctl: Run) -> None:
    assert hwctl("--version").out.startswith("hwctl ")
    for words in (("--version", "--json"), ("--json", "--version")):
        (row,) = hwctl(*words).document["results"]
        assert row.keys() >= {"hwctl", "python", "torch", "safetensors", "typer", "rich"}


def test_a_broken_installation_is_not_a_crash(tmp_path: Path) -> None:
    package = tmp_path / "typer"
    package.mkdir()
    (package / "__init__.py").write_text("raise ModuleNotFoundError('No module named typer', name='typer')\n")
    env = {"PYTHONPATH": f"{tmp_path}:{run_hwctl.environment()['PYTHONPATH']}"}
    done = run_hwctl.hwctl_("inspect", env=env)
    assert done.status == 13
    assert "install hwctl again" in done.err
