"""SHA-256 of a stream of blocks while the caller does something else with each block.

Owns the thread that hashes. ``fs.digest`` hashes files by itself; here the same bytes are also checked for
finiteness, written or kept, so that nothing is read twice.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from hwctl.stores.pageweights.memory import RING

# Below this a page is hashed before a thread would have started.
_INLINE_BYTES = 1 << 20


class Digester:
    """Feed it all blocks in order, then ask for the digest; leave the with-block in any case."""

    def __init__(self, size: int) -> None:
        self._sha = hashlib.sha256()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sha256") if size > _INLINE_BYTES else None
        self._pending: deque[Future[None]] = deque()

    def feed(self, block: memoryview | bytes, then: Callable[[], None] | None = None) -> None:
        """Hash a block, now or soon: it must stay as it is until RING - 1 further ones were fed.

        ``then`` is called after it on the same thread; what it raises comes out of a later call here.
        """
        if self._pool is None:
            self._work(block, then)
            return
        self._pending.append(self._pool.submit(self._work, block, then))
        while len(self._pending) >= RING:
            self._pending.popleft().result()

    def _work(self, block: memoryview | bytes, then: Callable[[], None] | None) -> None:
        self._sha.update(block)
        if then is not None:
            then()

    def hexdigest(self) -> str:
        """The digest of all that was fed."""
        while self._pending:
            self._pending.popleft().result()
        return self._sha.hexdigest()

    def __enter__(self) -> Digester:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _exc: BaseException | None, _trace: TracebackType | None
    ) -> None:
        # An exception or a signal: the block in hand is finished, what is queued is not begun.
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
