"""Whether torch can be loaded on this machine, found out once.

Owns the one import that may fail; everywhere else torch is imported where it is known to be there. Workers
ask at the same moment, and a second thread that imports a module whose first import is just failing is handed
the half-made module instead of the error, so they ask one after another.
"""

from __future__ import annotations

import threading

_lock = threading.Lock()
_answers: list[bool] = []


def torch_loads() -> bool:
    """Load torch, which takes a second or two; False where it is missing or broken.

    All that computes no tensors works without it (DEP-02), and one that is there and cannot be loaded, for a
    library of its own that is missing, is no better than none.
    """
    with _lock:
        if not _answers:
            try:
                import torch  # noqa: F401
            except (ImportError, OSError):
                _answers.append(False)
            else:
                _answers.append(True)
        return _answers[0]
