"""Every recipe of the README does what the sentence above it says."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import holders
import make_hostweights
import make_ktint8
import pytest
import yaml
from recipes import Place, named_blocks


def test_no_recipe_is_left_untried() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [name for name in named_blocks() if f'"{name}"' not in text] == []


def test_the_service_reclaims_and_leaves_metrics(place: Place) -> None:
    dead = make_ktint8.make_staging(place.base, "stale-run", process=make_ktint8.dead_process())
    staging = make_hostweights.make_staging(place.store, 2)
    unit = place.recipe("hwctl-reclaim.service")
    (command,) = [
        line.removeprefix("ExecStart=") for line in unit.splitlines() if line.startswith("ExecStart=")
    ]
    done = place.run(command)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not dead.exists() and not staging.exists()
    assert place.artifacts[0].exists()
    assert "hwctl_" in (place.folder / "hwctl_reclaim.prom").read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_units(place: Place) -> None:
    units = []
    for name in ("hwctl-reclaim.service", "hwctl-reclaim.timer"):
        units.append(place.folder / name)
        units[-1].write_text(place.recipe(name))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if "hwctl" in line]) == (0, [])


def test_the_cron_line_waits_a_while_and_reclaims(place: Place) -> None:
    line = place.recipe("hwctl")
    assert "%" not in line  # cron would take it for a newline
    *when, user, command = line.strip().split(" ", 6)
    assert (len(when), user) == (5, "root")
    place.program("sleep", f'echo "$1" >{place.folder}/slept')
    dead = make_ktint8.make_staging(place.base, "stale-run", process=make_ktint8.dead_process())
    done = place.run(command)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not dead.exists()
    assert 0 <= int((place.folder / "slept").read_text()) <= 255


def pod(place: Place) -> dict[str, list[dict[str, list[str]]]]:
    spec: dict[str, list[dict[str, list[str]]]] = yaml.safe_load(place.recipe("pod.yaml"))["spec"]
    return spec


@pytest.mark.parametrize("name", ["pod.yaml", "cronjob.yaml"])
def test_kubernetes_takes_the_manifests(name: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    validator.validate(yaml.safe_load(named_blocks()[name]), validator.latest_version(), strict=True)


def test_the_init_container_stops_a_pod_on_damage(place: Place) -> None:
    (container,) = pod(place)["initContainers"]
    command = container["command"]
    assert subprocess.run(command, env=place.environment, capture_output=True, check=False).returncode == 0
    place.damage()
    assert subprocess.run(command, env=place.environment, capture_output=True, check=False).returncode == 65
    place.artifacts[0].rename(place.folder / "gone")
    hurried = ["1s" if word == "30min" else word for word in command]
    assert subprocess.run(hurried, env=place.environment, capture_output=True, check=False).returncode == 10


def test_the_container_serves_under_a_lease(place: Place) -> None:
    place.program("serve", 'echo "serving $1"')
    (container,) = pod(place)["containers"]
    done = subprocess.run(
        container["command"], env=place.environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"serving {place.artifacts[0]}\n")


def test_the_cronjob_evicts_what_is_over_the_size(place: Place) -> None:
    for number in (0, 1):
        make_hostweights.set_last_use(place.store, number, 10**18 + number)
    used = sum(path.stat().st_size for path in place.store.rglob("*") if path.is_file())
    text = place.recipe("cronjob.yaml").replace("500GiB", str(used - 1)).replace("1h", "0.001s")
    job = yaml.safe_load(text)["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    command = [str(word) for word in job["containers"][0]["command"]]
    done = subprocess.run(command, env=place.environment, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["status"]) == (0, "ok")
    assert [path.exists() for path in place.artifacts] == [False, True]


def test_the_ci_step_passes_sound_artifacts_and_names_what_is_not(place: Place) -> None:
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    script = place.recipe("ci-verify")
    done = place.run(script)
    assert (done.returncode, done.stdout) == (0, "")
    place.damage()
    done = place.run(script)
    assert done.returncode == 65
    assert "size" in done.stdout
    assert json.loads((place.folder / "verify.json").read_text())["status"] == "damaged"


def test_the_wrapper_holds_what_it_runs_on(place: Place) -> None:
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    make_hostweights.set_last_use(place.store, 0, 2 * 10**18)
    place.program("serve", f'hwctl evict {place.artifacts[0]} -y; echo "evict $?, $*"')
    done = place.run(place.recipe("job-wrapper"))
    assert done.stdout.splitlines()[-1] == "evict 11, --port 8000", done
    assert place.artifacts[0].exists()
    assert place.run("hwctl evict --all -y " + str(place.store)).returncode == 0
    done = place.run(place.recipe("job-wrapper"))
    assert done.returncode not in (0, 127) and "serving" not in done.stdout, "nothing to run on"


def test_the_prolog_tells_damage_from_busy(place: Place) -> None:
    """Without Slurm; ``test_slurm`` runs it in one."""
    script = place.recipe("slurm-prolog").replace("--wait 30s", "--wait 1s")
    assert place.run(script).returncode == 0
    with holders.locked(place.store / "locks" / f"{place.artifacts[0].name}.artifact.lock", "exclusive"):
        assert place.run(script).returncode == 0
    place.damage()
    assert place.run(script).returncode == 1
