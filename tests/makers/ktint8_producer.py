"""A producer of hwctl's that stages a tree and then just lives: ``ktint8_producer.py BASE RUN``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from hwctl.fs.deadline import Deadline
from hwctl.stores.ktint8.staging import Order
from hwctl.stores.ktint8.staging_root import begin
from hwctl.weights.amx import Geometry


def main(base: Path, run: str) -> None:
    order = Order(run, f"kt-int8-{run}", Geometry(64, 64, 1, 1), (0,), "checkpoint:x")
    with begin(base, order, Deadline.now(), workers=1) or sys.exit("published already"):
        print("staged", flush=True)
        time.sleep(60)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
