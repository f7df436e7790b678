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
from hwctl.weights.moe.rows import STRIPE_ELEMENTS

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
    geometry = plan.geometry
    stripe = 2 * min(STRIPE_ELEMENTS, geometry.hidden * geometry.intermediate) if plan.transposes else 0
    apart = stripe + _BYTES_PER_STRETCH_ELEMENT * STRETCH + geometry.parts * geometry.hidden * SCALE_BYTES
    # A block holds whole row blocks, however wide the matrix is.
    smallest = max(SMALLEST_BLOCK, ROW_BLOCK * max(geometry.hidden, geometry.intermediate))
    workers = max(1, min(jobs, MEMORY_LIMIT // (apart + smallest * _BYTES_PER_ELEMENT)))
    room = (MEMORY_LIMIT // workers - apart) // _BYTES_PER_ELEMENT
    return Crew(workers, max(smallest, min(room, LARGEST_BLOCK)))
