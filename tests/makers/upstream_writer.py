"""kt-kernel's own INT8 writer and inference class, in a process of its own.

``KtKernel`` is the caller's side; run as a script, this file is the other one. It has to be another process:
importing kt_kernel changes the floating-point mode of the thread and prints to stdout. Requests and answers
are one JSON object a line. A request names an ``input`` (a safetensors file with gate and up [E, I, H] and
down [E, H, I], bf16), ``layer``, ``parts``, ``threads`` and ``out``, the root to write below. The answer has
the ``seconds`` that writing took, the processor time ``cpu`` of all threads, and the process's ``rss`` and
``peak`` in bytes. ``{}`` just answers. A request with ``tokens`` loads a layer of a tree and runs it, see
``forward``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def installed() -> bool:
    """Whether kt-kernel can be found, which says nothing of the processor."""
    return importlib.util.find_spec("kt_kernel") is not None


class KtKernel:
    """The process, until ``close``. Raises RuntimeError with its last words when it does not start."""

    def __init__(self) -> None:
        paths = [path for path in sys.path if path and Path(path) != Path(__file__).parent]
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
        try:
            self.variant: str = self.ask()["variant"]
        except BaseException:
            self.close()
            raise

    def ask(self, **request: object) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            _out, err = self._process.communicate(timeout=60)
            words = err.strip().splitlines()[-1:] or [f"exit status {self._process.returncode}"]
            raise RuntimeError(f"kt-kernel ended: {words[0]}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def memory() -> dict[str, int]:
    status = Path("/proc/self/status").read_text()
    fields = {"rss": "VmRSS", "peak": "VmHWM"}
    return {
        name: int(found[1]) * 1024
        for name, field in fields.items()
        if (found := re.search(rf"{field}:\s+(\d+) kB", status)) is not None
    }


def infer(extension: Any, threads: int, parts: int) -> Any:
    """A worker pool with ``threads`` threads over as many subpools as there are parts, all on NUMA node 0."""
    config = extension.WorkerPoolConfig()
    config.subpool_count = parts
    config.subpool_numa_map = [0] * parts
    config.subpool_thread_count = [max(1, threads // parts)] * parts
    return extension.CPUInfer(config)


def config(extension: Any, pool: Any, path: str, layer: int, sizes: tuple[int, int, int], top: int) -> Any:
    experts, hidden, intermediate = sizes
    made = extension.moe.MOEConfig(experts, top, hidden, intermediate, on_gpu(experts).data_ptr())
    made.layer_idx, made.pool, made.path, made.max_len = layer, pool.backend_, path, 64
    return made


_KEPT: dict[int, torch.Tensor] = {}


def on_gpu(experts: int) -> torch.Tensor:
    """A mask without any expert on a GPU; the extension keeps the pointer."""
    return _KEPT.setdefault(experts, torch.zeros(experts, dtype=torch.bool))


def write(extension: Any, pool: Any, request: dict[str, Any]) -> dict[str, float]:
    """Seconds by the clock and of processor time, of all threads."""
    weights = load_file(request["input"])
    gate, up, down = (weights[name].contiguous() for name in ("gate", "up", "down"))
    experts, intermediate, hidden = gate.shape
    order = torch.arange(experts, dtype=torch.int64)
    began, used = time.perf_counter(), time.process_time()
    made = config(extension, pool, request["out"], request["layer"], (experts, hidden, intermediate), 1)
    made.save, made.load = True, False
    made.gate_proj, made.up_proj, made.down_proj = gate.data_ptr(), up.data_ptr(), down.data_ptr()
    moe = extension.moe.AMXInt8_MOE(made)
    pool.submit(moe.load_weights_task(order.data_ptr()))
    pool.sync()
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - used}


def forward(extension: Any, pool: Any, request: dict[str, Any]) -> None:
    """Load one layer of the tree ``out`` and run the tokens of ``tokens`` through it, into ``result``.

    ``tokens`` holds input [T, H] bf16, expert ids [T, K] int64 and weights [T, K] fp32.
    """
    given = load_file(request["tokens"])
    tokens, ids, weights = (given[name].contiguous() for name in ("input", "ids", "weights"))
    sizes = request["experts"], request["hidden"], request["intermediate"]
    made = config(extension, pool, request["out"], request["layer"], sizes, ids.shape[1])
    made.save, made.load = False, True
    moe = extension.moe.AMXInt8_MOE(made)
    order = torch.arange(request["experts"], dtype=torch.int64)
    pool.submit(moe.load_weights_task(order.data_ptr()))
    pool.sync()
    count = torch.tensor([tokens.shape[0]], dtype=torch.int32)
    result = torch.zeros_like(tokens)
    given_to = (ids.data_ptr(), weights.data_ptr(), tokens.data_ptr(), result.data_ptr())
    pool.submit(moe.forward_task(count.data_ptr(), ids.shape[1], *given_to, False))
    pool.sync()
    save_file({"output": result}, request["result"])


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    import kt_kernel

    extension = kt_kernel.kt_kernel_ext
    pools: dict[tuple[int, int], Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {"variant": kt_kernel.__cpu_variant__, **memory()}
        if request:
            key = request["threads"], request["parts"]
            pool = pools.get(key) or pools.setdefault(key, infer(extension, *key))
            if "tokens" in request:
                forward(extension, pool, request)
            else:
                answer |= write(extension, pool, request)
            answer |= memory()
        print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # The extension's thread pools do not always end by themselves.


if __name__ == "__main__":
    main()
