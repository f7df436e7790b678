"""How many workers convert at once and how large their blocks are, from one limit on memory.

Owns that trade only. Every call into torch gives Python's lock away and has to win it back, so that two
workers with blocks that fit a core's cache were no faster than one: a block is as large as memory allows, and
becomes smaller only where there are more workers to feed.
"""

from __future__ import annotations

from dataclasses import dataclass

from hwctl.weights.amx import ROW_BLOCK, SCALE_BYTES
from hwctl.weights.int8 import STRETCH
from hwctl.weights.moe.plan import MoePlan
from hwctl.weights.moe.rows import READ_ROWS, STRIPE_ELEMENTS

MEMORY_LIMIT = 112 << 20
"""Bytes that the buffers of all workers of a conversion may come to."""
LARGEST_BLOCK = 1 << 21
"""Elements; from here on the calls cost nothing that shows."""
SMALLEST_BLOCK = 1 << 18
"""Elements; below it every call costs more than its arithmetic, so rather fewer workers."""

_BYTES_PER_ELEMENT = 10
"""Of a block, in all buffers together: stored and bf16 (or fp16, bf16 and fp32), codes and packed codes."""
_BYTES_PER_STRETCH_ELEMENT = 6
"""Magnitudes and products."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers of one conversion; ``block`` is the elements of a block in each one's buffers."""

    workers: int
    block: int


def crew_of(plan: MoePlan, jobs: int) -> Crew:
    """As many of ``jobs`` workers as the memory limit allows, at least one, and the blocks it leaves them."""
    # A block holds whole row blocks, however wide the matrix is.
    smallest = max(SMALLEST_BLOCK, ROW_BLOCK * max(plan.geometry.hidden, plan.geometry.intermediate))
    workers = max(1, min(jobs, MEMORY_LIMIT // worker_bytes(plan, smallest)))
    room = (MEMORY_LIMIT // workers - worker_bytes(plan, 0)) // _BYTES_PER_ELEMENT
    return Crew(workers, max(smallest, min(room, LARGEST_BLOCK)))


def worker_bytes(plan: MoePlan, block: int) -> int:
    """The most that one worker's buffers come to, with blocks of so many elements."""
    hidden, intermediate = plan.geometry.hidden, plan.geometry.intermediate
    gathered = 0
    if plan.transposes:
        stripe = min(STRIPE_ELEMENTS, hidden * intermediate)
        # The stripe, and beside it a few rows of it on their way, twice.
        gathered = 2 * (stripe + 2 * READ_ROWS * min(max(hidden, intermediate), stripe))
    stretch = max(STRETCH, hidden, intermediate) * _BYTES_PER_STRETCH_ELEMENT
    scales = plan.geometry.parts * max(hidden, intermediate) * SCALE_BYTES
    return block * _BYTES_PER_ELEMENT + gathered + stretch + scales
