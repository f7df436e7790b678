"""Entry point: from argv to an exit status, whatever happens on the way.

It owns the order of things at start and end: standard descriptors, ``--version`` before anything heavy is
imported, signals, and what no command caught. It leaves words and documents to ``cli``.
"""

from __future__ import annotations

import os
import sys

_UNSUPPORTED = 13
"""errors.Status.UNSUPPORTED, spelled here because an old interpreter cannot import it."""

if sys.version_info < (3, 11):  # noqa: UP036  # this is where an old interpreter is told so
    sys.stderr.write("hwctl: needs Python 3.11 or newer; this is %s\n" % sys.version.split()[0])  # noqa: UP031
    sys.exit(_UNSUPPORTED)


def main() -> None:
    """Run ``hwctl`` with the process's arguments and end the process."""
    _fill_standard_descriptors()
    from hwctl.cli import signals

    try:
        signals.install()
        status = _run(sys.argv[1:])
    except signals.Interrupted as exc:
        signals.die_of(exc.signum)
    sys.exit(status)


def _run(argv: list[str]) -> int:
    try:
        if "--version" in argv and set(argv) <= {"--version", "--json"}:
            from hwctl.cli.version import show

            return show(json="--json" in argv)
        from hwctl.cli.run import run
    except ImportError as exc:
        # A half-done installation; without this it would exit 1, which hwctl never does.
        sys.stderr.write(f"hwctl: incomplete installation: {exc}; install hwctl again\n")
        return _UNSUPPORTED
    return run(argv)


def _fill_standard_descriptors() -> None:
    """Give fds 0 to 2 an owner, so that no file of ours is opened in their place and printed into.

    A closed stdout becomes one that cannot be written to, and is reported as such.
    """
    for fd, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open("/dev/null", flags)


if __name__ == "__main__":
    main()
