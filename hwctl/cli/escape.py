"""The one function through which every untrusted word reaches a terminal, a pipe or a log line.

Names come from other people's files: they may hold ESC sequences, newlines, right-to-left overrides or
bytes that are no text at all (CLI-02). JSON has its own escapes; see ``document``.
"""

from __future__ import annotations

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape(text: str) -> str:
    """``text`` with everything unprintable spelled out: C0, C1, DEL, bidi and zero-width controls,
    line separators, unassigned characters and lone surrogates.

    A byte that was not UTF-8 (surrogateescape) comes out as ``\\xNN``. The result is one line.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _spelled(char) for char in text)


def _spelled(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
