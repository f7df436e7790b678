"""Filling a staging root: the matrices of every missing layer, made and written by one worker per core.

Owns the order of the work and the workers. Where pieces come from is told by the caller, a conversion or a
copy; writing is ``stores.ktint8``. The work of the next layer begins while the last matrices of one are
still being written, and a layer is finished in the main thread, so that a signal finds one place to unwind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from hwctl.stores.base import Advance
from hwctl.stores.ktint8.layer_writer import LayerWriter
from hwctl.stores.ktint8.staging import Staging
from hwctl.weights.amx import Piece, Projection

PieceMaker = Callable[[int, int, Projection], Iterator[Piece]]
"""Every piece of a layer's, an expert's matrix in all parts; run in a worker."""


@dataclass(frozen=True, slots=True)
class _Unit:
    writer: LayerWriter
    last: bool
    written: Future[int]


def fill(staging: Staging, make: PieceMaker, *, jobs: int, advance: Advance) -> None:
    """Write every missing layer. On any way out the workers have ended and the writers are closed.

    ``advance`` is told the bytes written, in the calling thread.
    """
    writers: list[LayerWriter] = []
    waiting: deque[_Unit] = deque()
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="ktint8")
    try:
        for layer in staging.missing:
            writer = staging.layer(layer)
            writers.append(writer)
            matrices = [(e, p) for e in range(staging.order.geometry.experts) for p in Projection]
            for expert, projection in matrices:
                pieces = make(layer, expert, projection)
                written = pool.submit(writer.write, expert, pieces)
                waiting.append(_Unit(writer, (expert, projection) == matrices[-1], written))
                while len(waiting) > 4 * jobs:
                    _settle(staging, waiting.popleft(), advance)
        while waiting:
            _settle(staging, waiting.popleft(), advance)
    finally:
        for writer in writers:
            writer.stop()
        pool.shutdown(wait=True, cancel_futures=True)
        for writer in writers:
            writer.release()


def _settle(staging: Staging, unit: _Unit, advance: Advance) -> None:
    advance(unit.written.result())
    if unit.last:
        staging.finish(unit.writer)
