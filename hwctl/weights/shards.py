"""From a name in a checkpoint to the real file behind it.

Owns links and kinds of files: a snapshot of the Hugging Face cache is a farm of links into blobs, and what
dangles, is missing or is no file has to be said before a byte is written (PUB-08, PUB-10). What the files
hold is read by checkpoint.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from hwctl.errors import Finding, from_os_error
from hwctl.fs.paths import NotRegular, identity, open_regular
from hwctl.weights.safetensors_file import Header, read_header

FileIdentity = tuple[int, int, int, int, int]
"""(device, inode, size, mtime ns, ctime ns), as hwctl.fs.paths.identity gives it."""

_SHA256_NAME = re.compile(r"[0-9a-f]{64}")
_MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class Shard:
    """One weight file. ``name`` is its name in the checkpoint, ``path`` the real file behind all links.

    ``blob_digest`` is the SHA-256 that the name of its blob promises, where a name on the way looks like one.
    """

    name: str
    path: Path
    size: int
    identity: FileIdentity
    header: Header
    blob_digest: str | None


def open_shard(folder: Path, name: str, *, strict: bool = True) -> Shard | tuple[Finding, ...]:
    """The shard called ``name``, its header read, or every reason why there is none.

    ``strict`` as in parse_header. Raises IoFailed when it cannot be found out.
    """
    place = folder / name
    chain = follow(place)
    if isinstance(chain, Finding):
        return (chain,)
    path = chain[-1]
    try:
        fd, st = open_regular(path)
    except NotRegular as exc:
        return (Finding("not-a-file", f"{name} is a {exc.kind}, not a file", name, actual=exc.kind),)
    except FileNotFoundError:
        return (_missing(name),)
    except OSError as exc:
        raise from_os_error(exc, f"cannot read {name}", path) from exc
    try:
        header = read_header(fd, st.st_size, name=name, strict=strict)
    except OSError as exc:
        raise from_os_error(exc, f"cannot read {name}", path) from exc
    finally:
        os.close(fd)
    if not isinstance(header, Header):
        return header
    promised = (link.name for link in chain[1:] if _SHA256_NAME.fullmatch(link.name))
    return Shard(name, path, st.st_size, identity(st), header, next(promised, None))


def follow(place: Path) -> list[Path] | Finding:
    """The path and, for a link, every further path on the way to the real one; or why there is none."""
    chain = [place]
    name = place.name
    while len(chain) <= _MOST_LINKS:
        try:
            target = chain[-1].parent / os.readlink(chain[-1])
        except (FileNotFoundError, NotADirectoryError):
            return _missing(name) if len(chain) == 1 else _dangling(name, chain[1])
        except OSError as exc:
            if exc.errno == errno.EINVAL:  # no link: this is the end of the chain
                return chain
            raise from_os_error(exc, f"cannot read {name}", chain[-1]) from exc
        # Folders on the way may be links too; realpath, since Path.resolve raises on a circle.
        chain.append(Path(os.path.realpath(target.parent), target.name))
    return Finding("dangling-link", f"{name} is a link into a circle of links", name, actual=str(chain[1]))


def _missing(name: str) -> Finding:
    return Finding("missing-shard", f"{name} is missing", name)


def _dangling(name: str, target: Path) -> Finding:
    return Finding(
        "dangling-link", f"{name} is a link to {target}, which is not there", name, actual=str(target)
    )
