"""The likeliest mistakes: each gets one line that says what is wrong, and where it can, what to do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import make_hostweights
import make_ktint8
import pytest
from run_hwctl import NOBODY, hwctl_, open_to_all

TINY = Path(__file__).parents[1] / "data" / "tiny-llama"
LAYERS = TINY.parent / "ktint8/golden/layers"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 12345\n"
KINDS = "no store or artifact of hostweights, ktint8 or pageweights"
SHARD = "model-00002-of-00002.safetensors"


class Scene:
    """A folder with what people have lying about. Words that begin with ``@`` name something in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = make_hostweights.make_store(folder / "store")
        self.artifact = make_hostweights.make_artifact(self.store, 0)
        (folder / "empty").mkdir()
        (folder / "file").write_text("just text\n")
        (folder / "page.html").write_text("<!DOCTYPE html><html>log in</html>")
        (folder / "bad.json").write_text("{")
        (folder / "half.json").write_text("{}")
        self.later = make_hostweights.make_store(folder / "later")
        make_hostweights.make_artifact(self.later, 0)
        self.policy_of_a_later_version()
        self.tree = make_ktint8.make_ready(folder, "some-run")
        self.staging = make_ktint8.make_staging(folder, "half-run", process=make_ktint8.dead_process())
        (self.store / "artifacts" / "zzz").write_text("a stranger")
        (folder / "loop").symlink_to("loop")
        (folder / "looped").mkdir()
        (folder / "looped" / "config.json").symlink_to("config.json")
        self.checkpoint("whole", lambda path: None)
        self.checkpoint("missing", Path.unlink)
        self.checkpoint("pointer", lambda path: path.write_bytes(LFS) and None)
        self.checkpoint("cut", lambda path: os.truncate(path, path.stat().st_size - 1))
        self.checkpoint("login", lambda path: path.write_text("<html>log in</html>") and None)
        self.checkpoint("dangling", lambda path: (path.unlink(), path.symlink_to("../blobs/gone"))[1])

    def policy_of_a_later_version(self) -> None:
        """As vLLM-Omni writes it after 0.30.0, which refuses it."""
        path = self.later / "domain-policy.json"
        policy = json.loads(path.read_bytes()) | {"schema_version": 2, "build_admission": "serialized"}
        path.unlink()
        path.write_bytes(make_hostweights.canonical(policy))

    def checkpoint(self, name: str, spoil: Callable[[Path], None]) -> None:
        shutil.copytree(TINY, self.folder / name)
        spoil(self.folder / name / SHARD)

    def word(self, word: str) -> str:
        if word.startswith("@artifact"):
            return str(self.artifact) + word.removeprefix("@artifact")
        return str(self.folder / word[1:]) if word.startswith("@") else word


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


PUBLISH = ("publish", "hostweights", "--store", "@store", "--from")
TREE = "@kt-int8-some-run"
MOE = ("publish", "ktint8", "--from", str(LAYERS), "--run-id", "job-000001")
KTINT8 = ("publish", "ktint8", "--base", "@empty", "--run-id")
MISTAKES: list[tuple[str, tuple[str, ...], int, str]] = [
    ("a misspelt verb", ("verfy", "@store"), 2, "Did you mean 'verify'?"),
    ("a lister's word", ("list",), 2, "hwctl inspect shows what is there"),
    ("a remover's word", ("prune", "@store", "-y"), 2, "hwctl evict removes"),
    ("help as a word", ("help", "verify"), 2, "hwctl COMMAND --help"),
    ("version as a word", ("version",), 2, "hwctl --version"),
    ("a publish of nothing", ("publish", "--from", "@whole", "--store", "@store"), 2, "hostweights, ktint8"),
    ("a publish of a path", ("publish", "@whole", "@store"), 2, "hostweights, ktint8 or pageweights"),
    ("a misspelt option", ("verify", "@store", "--lvel", "full"), 2, "No such option: --lvel"),
    ("no path", ("verify",), 2, "missing PATH"),
    ("an empty path", ("verify", ""), 2, "an empty path"),
    ("a path that is not there", ("verify", "@gone"), 10, "does not exist"),
    ("a folder that is no store", ("verify", "@empty"), 10, KINDS),
    ("a file that is no store", ("verify", "@file"), 10, KINDS),
    (
        "a checkpoint verified",
        ("verify", "@whole"),
        10,
        "hwctl publish hostweights --from it makes an artifact",
    ),
    ("a checkpoint evicted", ("evict", "@whole", "-y"), 10, "hwctl publish hostweights --from it"),
    ("a checkpoint consumed", ("consume", "@whole", "--discard", "-y"), 10, "hwctl publish ktint8 --from it"),
    ("a shard verified", ("verify", f"@whole/{SHARD}"), 10, "is a checkpoint"),
    ("a folder of a store", ("verify", "@store/artifacts"), 10, "store; name that, or an artifact in it"),
    ("another folder of a store", ("evict", "@store/quarantine", "-y"), 10, "lies inside the store"),
    ("a manifest in an artifact", ("verify", "@artifact/manifest.json"), 10, "name that, or the artifact"),
    ("a manifest in a tree", ("verify", "@kt-int8-some-run/kt-ephemeral-manifest.json"), 10, "the artifact"),
    (
        "the wrong family",
        ("verify", "@store", "--family", "ktint8"),
        10,
        "is of the family hostweights, no ktint8",
    ),
    ("an unknown level", ("verify", "@store", "--level", "deep"), 2, "'deep' is not one of 'marker'"),
    ("minutes or months", ("verify", "@store", "--timeout", "5m"), 2, "write 5min"),
    ("no time at all", ("verify", "@store", "--timeout", "0s"), 2, "--timeout"),
    ("a bare gigabyte", ("verify", "@store", "--rate", "5G"), 2, "write 5GiB (2^30) or 5GB (10^9)"),
    ("zero jobs", ("verify", "@store", "--jobs", "0"), 2, "at least 1"),
    ("a list that is not there", ("verify", "--paths-from", "@gone"), 2, "cannot read the list"),
    ("a list without an end", ("verify", "--paths-from", "/dev/zero", "-0"), 2, "longer than 64.0 MiB"),
    ("an identity that is no JSON", ("verify", "@store", "--identity", "@bad.json"), 2, "bad.json"),
    ("half an identity", ("verify", "@store", "--identity", "@half.json"), 2, "lacks the field"),
    ("a model for a host store", ("verify", "@store", "--expect", "layers=3"), 2, "kt-int8 tree"),
    ("quiet and verbose", ("verify", "@store", "-q", "-v"), 2, "contradict"),
    ("an unknown order", ("inspect", "@store", "--sort", "name"), 2, "'name' is not one of"),
    ("a page as weights", ("inspect", "@page.html"), 0, "HTML page"),
    ("no source", ("publish", "hostweights", "--store", "@store"), 2, "--from"),
    ("a source that is not there", (*PUBLISH, "@gone"), 10, "no such file or folder"),
    ("a name on a hub", (*PUBLISH, "Qwen/Qwen3-8B"), 10, "hwctl downloads nothing, so name a local folder"),
    ("a hub's name for trees", (*KTINT8, "job-000001", "--from", "Qwen/Qwen3-30B"), 10, "downloads nothing"),
    (
        "a text as source",
        (*PUBLISH, "@file"),
        65,
        "a text file, not safetensors (it begins with 'just text')",
    ),
    ("a source without weights", (*PUBLISH, "@empty"), 65, "no .safetensors file"),
    ("a missing shard", (*PUBLISH, "@missing"), 65, f"1 of 2 shards missing: {SHARD}"),
    ("an LFS pointer", (*PUBLISH, "@pointer"), 65, "fetch it with git lfs pull"),
    ("a cut download", (*PUBLISH, "@cut"), 65, "need"),
    ("a login page", (*PUBLISH, "@login"), 65, "HTML page"),
    ("a dangling link", (*PUBLISH, "@dangling"), 65, "blobs/gone"),
    (
        "a store in the source",
        ("publish", "hostweights", "--store", "@whole", "--from", "@whole"),
        12,
        "inside",
    ),
    ("a store on proc", ("publish", "hostweights", "--store", "/proc/x", "--from", "@whole"), 12, "proc"),
    (
        "a file as store",
        ("publish", "hostweights", "--store", "@file", "--from", "@whole"),
        15,
        "Not a directory",
    ),
    ("other limits", (*PUBLISH, "@whole", "--max-store-size", "1GiB"), 12, "set once, at creation"),
    ("a short run id", (*KTINT8, "x", "--from", "@whole"), 2, "6 to 128 letters"),
    ("a later version's store", ("verify", "@later"), 13, "schema 2 is not known here"),
    ("eviction from one", ("evict", "@later", "--all", "-y"), 13, "schema 2 is not known here"),
    ("a plan for one", ("evict", "@later", "--all", "-n"), 13, "schema 2 is not known here"),
    ("reclaiming in one", ("reclaim-stale", "@later", "-n"), 13, "schema 2 is not known here"),
    ("a plan to publish", (*PUBLISH[:3], "@later", "--from", "@whole", "-n"), 13, "schema 2 is not known"),
    (
        "publishing into one",
        (*PUBLISH[:3], "@later", "--from", "@whole"),
        13,
        "later/domain-policy.json: schema",
    ),
    (
        "layers without an end",
        ("publish", "ktint8", "--from", "@kt-int8-half-run.staging", "--layers", "3-"),
        2,
        "say which is the last",
    ),
    ("layers beyond number", ("verify", TREE, "--expect", "layers=0-99999999"), 2, "is too long"),
    ("a layer without an end", ("verify", TREE, "--expect", "layers=3-"), 2, "say which is the last"),
    ("a word that is no pair", ("verify", TREE, "--expect", "layers"), 2, "--expect layers: write KEY=VALUE"),
    ("a pair twice", ("verify", TREE, "--expect", "numa=1", "--expect", "numa=2"), 2, "numa stands twice"),
    ("a model that is not there", ("verify", TREE, "--for", "@whole/typo"), 2, "whole/typo does not exist"),
    ("a model that is a circle", ("verify", TREE, "--for", "@loop"), 2, "symbolic links"),
    ("a model of circles", ("verify", TREE, "--for", "@looped"), 2, "symbolic links"),
    ("a model that is no file", ("verify", TREE, "--for", "/dev/null"), 2, "is a character device"),
    ("a circle verified", ("verify", "@loop/x"), 15, "symbolic links"),
    ("a circle published", (*PUBLISH, "@loop"), 65, "1 dangling link"),
    ("a circle as store", (*PUBLISH[:3], "@loop", "--from", "@whole"), 15, "symbolic links"),
    ("a circle as base", (*MOE, "--base", "@loop"), 15, "symbolic links"),
    ("a name too long for a base", (*MOE, "--base", f"@{'x' * 256}"), 15, "File name too long"),
    ("a dense model", (*KTINT8, "job-000001", "--from", "@whole"), 13, "model family llama"),
    ("half an authority", ("publish", "pageweights", "--page", "@file", "--cache", "@c"), 2, "--authority"),
    ("a unit in small letters", ("evict", "@store", "--max-size", "5gb"), 2, "5GiB (2^30) or 5GB (10^9)"),
    ("a size in two words", ("evict", "@store", "--max-size", "10", "KiB", "-y"), 2, "'KiB' is a unit"),
    ("a time in two words", ("inspect", "@store", "2", "d"), 2, "'d' is a unit"),
    ("a stranger evicted", ("evict", "@store/artifacts/zzz", "-y"), 12, "it is not a store's own"),
    ("no limit for evict", ("evict", "@store"), 2, "--max-size"),
    ("a budget of zero", ("evict", "@store", "--max-size", "0"), 2, "zero is refused"),
    ("more free than there is", ("evict", "@store", "--min-free", "9999TiB", "-y"), 14, "store: --min-free"),
    ("all of it free", ("evict", "@store", "--min-free", "100%", "-y"), 14, "nothing was removed"),
    ("evict without a yes", ("evict", "@artifact"), 12, "--yes"),
    ("no reason", ("quarantine", "@artifact", "-y"), 2, "--reason"),
    ("a whole store set aside", ("quarantine", "@store", "--reason", "x", "-y"), 12, "name an entry"),
    ("an unknown quarantine entry", ("quarantine", "--restore", "@gone", "-y"), 10, "does not exist"),
    ("a key without its store", ("quarantine", "--restore", "some-key", "-y"), 10, "looked in /dev/shm"),
    (
        "a key in another store",
        ("quarantine", "@store", "--restore", "some-key", "-y"),
        10,
        "/store; name another store as PATH",
    ),
    (
        "a path as a name's store",
        ("quarantine", "@gone", "--restore", "@artifact"),
        2,
        "PATH says where a NAME",
    ),
    ("a colon among paths", ("exec", "@artifact", "--with", "@a:b", "--", "true"), 2, "path with a colon"),
    ("no command", ("exec", "@artifact"), 2, "write it after --"),
    ("a command that is not there", ("exec", "@artifact", "--", "/nonexistent"), 127, "No such file"),
    ("a command that is none", ("exec", "@artifact", "--", "/etc/hostname"), 126, "cannot run"),
    ("a whole store held", ("exec", "@store", "--", "true"), 125, "name an artifact"),
    ("an artifact consumed", ("consume", "@artifact", "--discard", "-y"), 10, "no ktint8 store or artifact"),
    ("what to do with a tree", ("consume", "@kt-int8-some-run", "-y"), 2, "--discard"),
    ("an unknown unit", ("reclaim-stale", "@store", "--older-than", "2x"), 2, "units are s, min, h, d and w"),
    ("a live artifact reclaimed", ("reclaim-stale", "@artifact", "-y"), 12, "ready"),
]


@pytest.mark.parametrize(("words", "status", "hint"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_one_line_says_what_is_wrong(scene: Scene, words: tuple[str, ...], status: int, hint: str) -> None:
    run = hwctl_(*map(scene.word, words))
    assert run.status == status, run
    said = [line for line in (run.out + run.err).splitlines() if hint in line]
    assert len(said) == 1, run
    assert "Traceback" not in run.err
    if status not in (0, 12, 65):
        assert len(run.err.splitlines()) <= 1, run.err


def test_inspect_says_what_a_path_is_instead(scene: Scene) -> None:
    run = hwctl_("inspect", scene.word("@whole"), scene.store / "quarantine")
    assert run.status == 10
    assert "whole is a checkpoint; hwctl publish hostweights --from it" in run.err
    assert f"lies inside the store {scene.store}; name that, or an artifact in it" in run.err


@pytest.mark.parametrize("verb", ["verify", "evict"])
@pytest.mark.parametrize("roots", ["", "@store"])
def test_a_missing_path_is_not_taken_from_the_roots(scene: Scene, verb: str, roots: str) -> None:
    run = hwctl_(verb, env={"HWCTL_ROOTS": scene.word(roots)})
    assert run.status == 2
    assert ("HWCTL_ROOTS" in run.err) == bool(roots)
    assert len(run.err.splitlines()) == 1


def test_a_size_in_two_words_evicts_nothing(scene: Scene) -> None:
    run = hwctl_("evict", scene.store, "--max-size", "10", "KiB", "-y")
    assert (run.status, run.out) == (2, "")
    assert scene.artifact.is_dir()


FAILING = {(m[1][0], m[2]): m for m in MISTAKES if m[2] not in (0, 65) and m[1][0] not in ("publish", "exec")}
"""One for each verb and status."""


@pytest.mark.parametrize(
    ("words", "status", "hint"), [m[1:] for m in FAILING.values()], ids=[m[0] for m in FAILING.values()]
)
def test_the_error_object_says_the_same(scene: Scene, words: tuple[str, ...], status: int, hint: str) -> None:
    run = hwctl_(words[0], "--json", *map(scene.word, words[1:]))
    assert (run.status, run.error["exit_status"]) == (status, status)
    assert hint in run.error["message"] or hint in run.out  # what was kept, and why, is in the document


def test_a_home_is_one_wherever_a_path_stands(scene: Scene) -> None:
    """Shells leave ``~`` alone behind an equals sign."""
    home = {"HOME": str(scene.folder)}
    (scene.folder / "list").write_text(f"{scene.store}\n")
    (scene.folder / "moe").symlink_to(LAYERS)
    for words, status in (
        (("verify", "~/store"), 0),
        (("verify", "--paths-from=~/list"), 0),
        (("verify", "~/kt-int8-some-run", "--for=~/moe"), 65),  # it was found, and is of another shape
        (("publish", "hostweights", "--from=~/whole", "--store=~/new", "-n"), 0),
        (("publish", "ktint8", "--from=~/moe", "--base=~/new", "--run-id", "job-000001", "-n"), 0),
    ):
        run = hwctl_(*words, env=home)
        assert run.status == status, run
        assert "~" not in run.out + run.err
    shown = hwctl_("inspect", "--json", env=home | {"HWCTL_ROOTS": "~/store:~/empty"})
    assert {row["store"] for row in shown.results} == {str(scene.store), None}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_somebody_elses_store(scene: Scene) -> None:
    run = hwctl_("evict", scene.store, "--all", "-y", uid=NOBODY)
    assert run.status == 15
    assert "permission denied" in run.err.lower()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what its owner cannot look into")
def test_what_cannot_be_looked_into_is_not_evicted(scene: Scene) -> None:
    open_to_all(scene.folder)
    for path in (scene.folder, scene.tree):
        os.chown(path, NOBODY, NOBODY)
    scene.tree.chmod(0)
    run = hwctl_("evict", scene.tree, "-y", "--json", uid=NOBODY)
    assert run.status == 15, run
    assert run.results[0]["reason"].startswith("cannot be looked into: ")
    assert scene.tree.is_dir()


def test_one_is_not_many(scene: Scene) -> None:
    new = scene.folder / "new"
    planned = hwctl_("publish", "hostweights", "--from", scene.artifact, "--store", new, "-n")
    done = hwctl_("publish", "hostweights", "--from", scene.artifact, "--store", new)
    assert ": 1 tensor of " in planned.err and ": 1 tensor, " in done.err
