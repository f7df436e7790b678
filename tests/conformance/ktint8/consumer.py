"""A consumer process for the scenarios: opens the ready root of a base, says "open", does what it is told.

python consumer.py BASE sleep|fork|refused
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ktroot import RUN

from hwctl.errors import Busy
from hwctl.stores.ktint8.opening import Opening, consuming


def main(base: Path, task: str) -> None:
    root = base / f"kt-int8-{RUN}"
    try:
        with consuming(root, Opening()):
            if task == "fork":
                child = os.fork()
                if child == 0:
                    sys.exit(0)
                os.waitpid(child, 0)
            print("open", flush=True)
            time.sleep(60)
    except Busy as exc:
        print(f"busy: {exc.message}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
