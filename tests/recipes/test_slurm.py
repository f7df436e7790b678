"""The Slurm recipes in a real Slurm: a job on sound weights, on a busy store, on damaged weights."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import holders
import make_ktint8
import pytest
import slurm
from recipes import Place

pytestmark = pytest.mark.skipif(slurm.missing() is not None, reason=str(slurm.missing()))


@pytest.fixture
def cluster(place: Place) -> Iterator[slurm.Cluster]:
    def script(name: str) -> str:
        text = place.recipe(name).replace("--wait 30s", "--wait 1s")
        return text.replace("hwctl ", f"{place.folder}/bin/hwctl ")

    # munged wants a socket's path to be short, and every folder above it to be closed to others.
    with (
        tempfile.TemporaryDirectory(dir="/run") as folder,
        slurm.cluster(Path(folder), script("slurm-prolog"), script("slurm-epilog")) as made,
    ):
        yield made


def test_jobs_run_on_sound_and_busy_weights_and_not_on_damaged_ones(
    place: Place, cluster: slurm.Cluster
) -> None:
    base = str(place.base)
    job = (
        f"import os, sys; sys.path.insert(0, {str(Path(make_ktint8.__file__).parent)!r})\n"
        f"import pathlib, make_ktint8 as make; base = pathlib.Path({base!r})\n"
        "run = 'slurm-' + os.environ['SLURM_JOB_ID']\n"
        "make.make_staging(base, run, process=make.this_process())\n"
        "print('ran')\n"
    )
    stranger = make_ktint8.make_ready(place.base, "another-job")
    done = cluster.run("srun", "python3", "-c", job)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert cluster.wait_for("idle") == "idle"
    assert sorted(place.base.iterdir()) == [stranger], "the epilog frees this job's tree, and no other"

    with holders.locked(place.store / "locks" / f"{place.artifacts[0].name}.artifact.lock", "exclusive"):
        done = cluster.run("srun", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr

    cluster.wait_for("idle")
    place.damage()
    cluster.run("sbatch", "--output=/dev/null", "--wrap=true")
    assert cluster.wait_for("drained", "draining") in ("drained", "draining")
