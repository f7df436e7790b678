"""What may be wrong with an artifact."""

from __future__ import annotations

import json
import os
import struct

from pagecase import EITHER, Ctx, case
from pagegen import (
    IDS,
    TENSORS,
    Blob,
    encode,
    frame,
    ids_blob,
    ramp,
    special,
)

FOREIGN_UID = 65534


# -------------------------------------------------------------------- artifact
@case("artifact-missing", "locator and receipt present, artifact gone")
def _(ctx: Ctx) -> None:
    ctx.names[0].artifact.unlink()


@case("artifact-flipped", "one bit of the tensor bytes flipped")
def _(ctx: Ctx) -> None:
    ctx.flip(ctx.names[0].artifact, ctx.size(0) - 33)


@case("artifact-truncated", "last byte cut off")
def _(ctx: Ctx) -> None:
    ctx.rewrite(ctx.names[0].artifact, ctx.names[0].artifact.read_bytes()[:-1])


@case("artifact-empty", "artifact of zero bytes")
def _(ctx: Ctx) -> None:
    ctx.rewrite(ctx.names[0].artifact, b"")


@case("artifact-mode-0440", "artifact readable by the group")
def _(ctx: Ctx) -> None:
    ctx.names[0].artifact.chmod(0o440)


@case(
    "artifact-mode-0600",
    "artifact still writable by its owner, as a crash right after its renaming leaves it",
)
def _(ctx: Ctx) -> None:
    ctx.names[0].artifact.chmod(0o600)


@case("artifact-symlink", "artifact is a symbolic link to a right copy")
def _(ctx: Ctx) -> None:
    ctx.names[0].artifact.symlink_to(ctx.move_out(ctx.names[0].artifact))


@case(
    "artifact-hard-link",
    "artifact has a second name outside the root",
    allow=EITHER,
    why="link count is not looked at by the original; a strict reader may refuse",
)
def _(ctx: Ctx) -> None:
    os.link(ctx.names[0].artifact, ctx.outside / "second")


@case("artifact-foreign-owner", "artifact owned by another user", needs=("root",))
def _(ctx: Ctx) -> None:
    os.chown(ctx.names[0].artifact, FOREIGN_UID, -1)


@case("artifact-extra-tensor", "a twelfth tensor, every link consistent")
def _(ctx: Ctx) -> None:
    blobs = {**ctx.pages[0].blobs, "extra_t": ramp("float32", (1, 2), 9)}
    ctx.redo(0, artifact=encode(blobs))


@case("artifact-missing-tensor", "ten tensors, every link consistent")
def _(ctx: Ctx) -> None:
    blobs = dict(ctx.pages[0].blobs)
    del blobs["up_t"]
    ctx.redo(0, blobs=blobs)


@case("artifact-one-dtype", "one tensor in another dtype, every link consistent")
def _(ctx: Ctx) -> None:
    ctx.redo(0, blobs={**ctx.pages[0].blobs, "up_t": ramp("float16", (1, 8, 4), 3)})


@case("artifact-page-id", "page_ids_t holds another page id, every link consistent")
def _(ctx: Ctx) -> None:
    ctx.redo(0, blobs={**ctx.pages[0].blobs, IDS: ids_blob(1)})


@case("artifact-ids-int32", "page_ids_t is int32, every link consistent")
def _(ctx: Ctx) -> None:
    ctx.redo(0, blobs={**ctx.pages[0].blobs, IDS: ids_blob(0, "int32")})


@case("artifact-leading-two", "one weight has leading extent 2, every link consistent")
def _(ctx: Ctx) -> None:
    ctx.redo(0, blobs={**ctx.pages[0].blobs, "down_t": ramp("float32", (2, 4, 8), 3)})


@case(
    "artifact-weight-scalar",
    "one weight has no dimension, every link consistent",
    why="must be refused in an orderly way",
)
def _(ctx: Ctx) -> None:
    ctx.redo(0, blobs={**ctx.pages[0].blobs, "up_t": ramp("float32", (), 3)})


@case("artifact-nan", "one NaN among the weights, every link consistent")
def _(ctx: Ctx) -> None:
    blobs = dict(ctx.pages[0].blobs)
    blobs["transfer_memory_t"] = special(blobs["transfer_memory_t"], -1, float("nan"))
    ctx.redo(0, blobs=blobs)


@case("artifact-zeros-and-subnormals", "negative zero, subnormals and extremes are finite")
def _(ctx: Ctx) -> None:
    blobs = dict(ctx.pages[0].blobs)
    raw = bytearray(blobs["gate_t"].data)
    struct.pack_into("<4I", raw, 0, 0x80000000, 0x00000001, 0x7F7FFFFF, 0xFF7FFFFF)
    blobs["gate_t"] = Blob("float32", blobs["gate_t"].shape, bytes(raw))
    ctx.pages[0].blobs = blobs
    ctx.redo(0)
    ctx.ask(0)


@case("artifact-garbage", "artifact is not safetensors, every digest consistent")
def _(ctx: Ctx) -> None:
    ctx.redo(0, artifact=bytes(range(256)) * 8)


@case("artifact-hole", "last tensor starts eight bytes late, every digest consistent")
def _(ctx: Ctx) -> None:
    good = encode(ctx.pages[0].blobs)
    size = struct.unpack_from("<Q", good)[0]
    header = json.loads(good[8 : 8 + size])
    last = max(header, key=lambda n: header[n]["data_offsets"][1])
    header[last]["data_offsets"] = [x + 8 for x in header[last]["data_offsets"]]
    bent = frame(json.dumps(header, separators=(",", ":")).encode(), good[8 + size :] + b"\0" * 8)
    ctx.redo(0, artifact=bent)


@case("artifact-reordered", "tensors laid out in another order, every link consistent")
def _(ctx: Ctx) -> None:
    ctx.redo(0, artifact=encode(ctx.pages[0].blobs, order=[IDS, *reversed(TENSORS[1:])]))


@case(
    "artifact-metadata",
    "safetensors header carries __metadata__, every link consistent",
    allow=EITHER,
    why="never written by the original, but read without complaint",
)
def _(ctx: Ctx) -> None:
    ctx.redo(0, artifact=encode(ctx.pages[0].blobs, metadata={"format": "pt"}))


@case("artifacts-swapped", "pages 0 and 1 have each other's artifact bytes")
def _(ctx: Ctx) -> None:
    zero, one = (n.artifact.read_bytes() for n in ctx.names[:2])
    ctx.rewrite(ctx.names[0].artifact, one)
    ctx.rewrite(ctx.names[1].artifact, zero)


@case("artifacts-swapped-twins", "pages 0 and 4, equal in bytes, have each other's artifact file")
def _(ctx: Ctx) -> None:
    kept = ctx.move_out(ctx.names[0].artifact)
    os.rename(ctx.names[4].artifact, ctx.names[0].artifact)
    os.rename(kept, ctx.names[4].artifact)
