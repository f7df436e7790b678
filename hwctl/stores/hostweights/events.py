"""What a check meets: damage, or not being able to find out. Owns telling the two apart by the error."""

from __future__ import annotations

import errno
import os

from hwctl.errors import Finding, HwctlError, from_os_error
from hwctl.fs.paths import NotRegular, TooLarge

Event = Finding | HwctlError
"""Either something is wrong, or it could not be found out whether something is."""


def of_directory(exc: OSError, name: str, path: str) -> Event:
    """Check 6: what an error on opening an artifact's directory means."""
    if exc.errno in (errno.ENOTDIR, errno.ELOOP):
        return Finding("not-a-directory", f"{name} is a file or a link, not a directory")
    if exc.errno == errno.ENOENT:
        return Finding("missing-file", f"{name} is gone")
    return from_os_error(exc, f"cannot open {path}", path)


_WRONG_KIND = {
    errno.ENOENT: ("missing-file", "is missing"),
    errno.ELOOP: ("symbolic-link", "is a symbolic link"),
    errno.EISDIR: ("not-regular", "is a directory, not a regular file"),
    errno.ENOTDIR: ("not-regular", "is not a regular file"),
}


def of_file(exc: OSError, name: str, path: str) -> Event:
    """What an error on opening or reading a file means: damage only where the file itself is wrong.

    EACCES and EPERM are no damage, though upstream takes them for it and denies the artifact for everybody
    after one passing slip of a mode (VER-10).
    """
    if isinstance(exc, NotRegular):
        return Finding("not-regular", f"{name} {exc.strerror}", name)
    if isinstance(exc, TooLarge):
        return Finding("too-large", f"{name} {exc.strerror}", name, exc.limit, exc.size)
    if exc.errno in _WRONG_KIND:
        code, words = _WRONG_KIND[exc.errno]
        return Finding(code, f"{name} {words}", name)
    return from_os_error(exc, f"cannot read {name}", os.path.join(path, name))
