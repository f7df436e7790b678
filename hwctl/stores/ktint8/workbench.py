"""What each worker thread keeps between files of a tree: one read buffer, one content check.

Owns their reuse and nothing of what is read into them; memory grows with the threads, never with the files.
"""

from __future__ import annotations

import threading

from hwctl.weights.amx_content import ContentCheck


class Workbench:
    """Shared by all workers of one pass over a tree; each sees its own buffer and check."""

    def __init__(self) -> None:
        self._local = threading.local()

    def buffer(self, size: int) -> memoryview:
        """At least ``size`` bytes, with whatever the last file left in them."""
        held = getattr(self._local, "buffer", None)
        if not isinstance(held, memoryview) or len(held) < size:
            held = self._local.buffer = memoryview(bytearray(size))
        return held

    def check(self) -> ContentCheck:
        """The thread's own check of content rules."""
        held = getattr(self._local, "check", None)
        if not isinstance(held, ContentCheck):
            held = self._local.check = ContentCheck()
        return held
