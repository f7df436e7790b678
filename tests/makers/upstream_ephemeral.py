"""kt-kernel's own lifecycle code (its sft folder), in a process of its own, without its compiled kernels.

``ask`` is the caller's side; run as a script, this file is the other one: it does one thing to the root it is
given and prints what came of it as JSON. It is another process because the code installs signal and exit
handlers that delete.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any


def installed() -> bool:
    return importlib.util.find_spec("kt_kernel") is not None


def ask(what: str, root: Path, **request: object) -> dict[str, Any]:
    """Do one thing; the answer has ``result``, or ``error`` with the exception's name and words."""
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, "-P", __file__, what, str(root), json.dumps(request)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        timeout=60,
    )
    if done.returncode or not done.stdout:
        raise RuntimeError(done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def load() -> tuple[Any, Any]:
    """The modules, found beside the package but not through it: importing that starts its kernels."""
    spec = importlib.util.find_spec("kt_kernel")
    assert spec is not None and spec.submodule_search_locations
    package = types.ModuleType("ktsft")
    package.__path__ = [os.path.join(spec.submodule_search_locations[0], "sft")]
    sys.modules["ktsft"] = package
    return importlib.import_module("ktsft.ephemeral"), importlib.import_module("ktsft.weight_manifest")


def act(what: str, root: Path, request: dict[str, Any]) -> object:
    ephemeral, manifest = load()
    ephemeral._EPHEMERAL_BASE = root.parent
    run = request.pop("run", None)
    if what == "lease":
        ephemeral.write_ephemeral_staging_lease(root, run_id=run, producer_pid=request["pid"])
        return "leased"
    if what == "publish":
        return str(ephemeral.publish_ephemeral_int8_weights(root, run_id=run, **request))
    if what == "reclaim":
        return ephemeral.reclaim_stale_ephemeral_int8_staging(root, run_id=run)
    if what == "validate":
        found = manifest.validate_persistent_int8_weights(root, verify_hashes=True, **request)
        return [found.schema_version, found.file_count, found.size_bytes]
    assert what == "consume"
    store = ephemeral.EphemeralKTWeightStore.open(root, **request)
    seen = {}
    for layer in request["layer_indices"]:
        files = sorted((root / f"_layer_{layer}").rglob("*.kt"))
        seen[str(layer)] = sum(path.stat().st_size for path in files)
        store.consume_layer(layer)
    store.finish()
    return seen


def main() -> None:
    what, root, request = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    try:
        answer = {"result": act(what, root, request)}
    except Exception as exc:
        answer = {"error": f"{type(exc).__name__}: {exc}"}
    print(json.dumps(answer), flush=True)
    os._exit(0)  # no exit handler may delete what is still being looked at


if __name__ == "__main__":
    main()
