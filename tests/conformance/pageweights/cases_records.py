"""Valid pages, and what may be wrong with a locator or a receipt."""

from __future__ import annotations

import hashlib
import json
import os

from pagecase import EITHER, Ctx, case, other_hex
from pagegen import (
    geometry_of,
    put,
)

# ------------------------------------------------------------------ valid pages
for number, about in enumerate(
    (
        "float32",
        "bfloat16; huge, negative and zero identity numbers",
        "float16; tensors with a zero extent",
        "float64; one element each",
    )
):
    case(f"valid-p{number}", f"untouched base page, {about}", page=number)(lambda ctx: None)


# --------------------------------------------------------------------- locator
@case("locator-missing", "receipt and artifact present, locator gone")
def _(ctx: Ctx) -> None:
    ctx.names[0].locator.unlink()


@case("locator-empty", "locator of zero bytes")
def _(ctx: Ctx) -> None:
    ctx.rewrite(ctx.names[0].locator, b"")


@case("locator-list", "locator is a JSON array around the right object")
def _(ctx: Ctx) -> None:
    ctx.redo(0, locator_bytes=lambda raw: b"[" + raw.strip() + b"]\n")


@case("locator-bad-utf8", "one byte of the locator is not UTF-8")
def _(ctx: Ctx) -> None:
    ctx.redo(0, locator_bytes=lambda raw: raw.replace(b"none_shared", b"none\xffshared", 1))


@case(
    "locator-duplicate-key-last-good",
    "cacheKey twice, the right value last",
    allow=EITHER,
    why="a parser that keeps the last value accepts it; a strict reader may refuse",
)
def _(ctx: Ctx) -> None:
    ctx.redo(0, locator_bytes=lambda raw: raw.replace(b'"cacheKey":', b'"cacheKey":"x","cacheKey":', 1))


@case("locator-schema", "locator names another schema, signature repaired")
def _(ctx: Ctx) -> None:
    ctx.redo(0, locator=lambda r: r.update(schema=r["schema"].replace("v1", "v2")))


@case("locator-record-sha", "locator signature is another well-formed digest")
def _(ctx: Ctx) -> None:
    ctx.redo(0, locator_signed=lambda r: r.update(recordPayloadSha256=other_hex(r["recordPayloadSha256"])))


@case("locator-signed-over-utf8", "non-ASCII field, signature taken over raw UTF-8 instead of escapes")
def _(ctx: Ctx) -> None:
    def late(record):
        body = {k: v for k, v in record.items() if k != "recordPayloadSha256"}
        body["note"] = "naïve"
        raw = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        record.update(body, recordPayloadSha256=hashlib.sha256(raw).hexdigest())

    ctx.redo(0, locator_signed=late)


@case("locator-non-ascii", "a further signed field with non-ASCII text, stored as raw UTF-8")
def _(ctx: Ctx) -> None:
    ctx.redo(0, locator=lambda r: r.update({"ключ": "naïve 雪 🙂", "a": "\u007f\u0080"}))


@case("locator-pretty", "indented, CRLF line ends, keys in another order")
def _(ctx: Ctx) -> None:
    def raw(encoded):
        record = json.loads(encoded)
        text = json.dumps(dict(reversed(record.items())), indent=3)
        return text.replace("\n", "\r\n").encode()

    ctx.redo(0, locator_bytes=raw)


@case(
    "locator-number-as-float",
    "pageId 0 written as 0.0 in the authority, signature repaired",
    allow=EITHER,
    why="equal as numbers, not equal as text",
)
def _(ctx: Ctx) -> None:
    ctx.redo(0, locator=lambda r: r.update(authority={**r["authority"], "pageId": 0.0}))


@case("locator-of-another-page", "page 1's locator copied over page 0's")
def _(ctx: Ctx) -> None:
    ctx.rewrite(ctx.names[0].locator, ctx.names[1].locator.read_bytes())


@case("locator-other-identity", "authority in the locator has another inode, signature repaired")
def _(ctx: Ctx) -> None:
    def edit(record):
        identity = list(record["authority"]["sourceFileIdentity"])
        identity[1] += 1
        record["authority"] = {**record["authority"], "sourceFileIdentity": identity}

    ctx.redo(0, locator=edit)


@case("locator-key-escapes", "cacheKey is a path that climbs out of the root, signature repaired")
def _(ctx: Ctx) -> None:
    ctx.redo(0, locator=lambda r: r.update(cacheKey="../outside/" + r["cacheKey"][11:]))


@case("locator-receipt-sha-null", "receiptSha256 is null, signature repaired")
def _(ctx: Ctx) -> None:
    ctx.redo(0, locator=lambda r: r.update(receiptSha256=None))


@case("locator-unknown-key", "cacheKey well formed but no such files, signature repaired")
def _(ctx: Ctx) -> None:
    ctx.redo(0, locator=lambda r: r.update(cacheKey=other_hex(r["cacheKey"])))


@case("locator-extra-field", "a further signed field")
def _(ctx: Ctx) -> None:
    ctx.redo(0, locator=lambda r: r.update(writer="somebody else", n=[1, {"b": None}]))


@case("locator-mode-0644", "locator readable by others")
def _(ctx: Ctx) -> None:
    ctx.names[0].locator.chmod(0o644)


@case("locator-mode-0400", "locator read-only for its owner")
def _(ctx: Ctx) -> None:
    ctx.names[0].locator.chmod(0o400)


@case("locator-symlink", "locator is a symbolic link to a right copy")
def _(ctx: Ctx) -> None:
    ctx.names[0].locator.symlink_to(ctx.move_out(ctx.names[0].locator))


@case(
    "locator-dangling-link",
    "locator is a symbolic link to nothing",
    allow=("miss", "refused"),
    why="the original takes it for absent and publishes over it",
)
def _(ctx: Ctx) -> None:
    ctx.names[0].locator.unlink()
    ctx.names[0].locator.symlink_to("nowhere")


@case(
    "locator-deep-json",
    "100,000 nested arrays in a further field",
    why="must be refused in an orderly way, with no recursion error or crash",
)
def _(ctx: Ctx) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    ctx.redo(0, locator_bytes=lambda raw: raw.rstrip()[:-1] + b',"zz":' + deep + b"}\n")


# --------------------------------------------------------------------- receipt
@case("receipt-missing", "locator and artifact present, receipt gone")
def _(ctx: Ctx) -> None:
    ctx.names[0].receipt.unlink()


@case("receipt-flipped", "one bit of the receipt flipped")
def _(ctx: Ctx) -> None:
    ctx.flip(ctx.names[0].receipt, 40)


@case("receipt-reformatted", "same record, final newline dropped, locator left")
def _(ctx: Ctx) -> None:
    ctx.rewrite(ctx.names[0].receipt, ctx.names[0].receipt.read_bytes().rstrip())


@case("receipt-not-weights-only", "weightsOnly false, both signatures repaired")
def _(ctx: Ctx) -> None:
    ctx.redo(0, receipt=lambda r: r.update(weightsOnly=False))


@case("receipt-weights-only-one", "weightsOnly is the number 1, both signatures repaired")
def _(ctx: Ctx) -> None:
    ctx.redo(0, receipt=lambda r: r.update(weightsOnly=1))


@case("receipt-optimizer-field-missing", "optimizerStateStored absent, both signatures repaired")
def _(ctx: Ctx) -> None:
    ctx.redo(0, receipt=lambda r: r.pop("optimizerStateStored"))


@case(
    "receipt-access-flag-false",
    "acceptedSourceAuthorityRequiredOnEveryAccess false, signatures repaired",
    allow=EITHER,
    why="the field is written but never read back; a strict reader may refuse",
)
def _(ctx: Ctx) -> None:
    ctx.redo(0, receipt=lambda r: r.update(acceptedSourceAuthorityRequiredOnEveryAccess=False))


@case("receipt-path-escapes", "artifact.path climbs out of the root to an equal file, signatures repaired")
def _(ctx: Ctx) -> None:
    put(ctx.outside / "copy.safetensors", ctx.names[0].artifact.read_bytes(), 0o400)
    ctx.redo(0, receipt=lambda r: r["artifact"].update(path="../outside/copy.safetensors"))


@case("receipt-bytes-off-by-one", "artifact.bytes one too high, signatures repaired")
def _(ctx: Ctx) -> None:
    ctx.redo(0, receipt=lambda r: r["artifact"].update(bytes=r["artifact"]["bytes"] + 1))


@case("receipt-artifact-sha-other", "artifact.sha256 another digest, signatures repaired")
def _(ctx: Ctx) -> None:
    ctx.redo(0, receipt=lambda r: r["artifact"].update(sha256=other_hex(r["artifact"]["sha256"])))


@case("receipt-geometry-shape", "one shape in geometry changed, geometrySha256 left")
def _(ctx: Ctx) -> None:
    ctx.redo(0, receipt=lambda r: r["geometry"]["gate_t"].update(shape=[1, 4, 8]))


@case(
    "receipt-geometry-consistent", "one shape changed, geometrySha256, key, names and signatures all follow"
)
def _(ctx: Ctx) -> None:
    bent = geometry_of(ctx.pages[0].blobs)
    bent["gate_t"]["shape"] = [1, 4, 8]
    ctx.redo(0, geometry=bent)


@case("receipt-other-key", "cacheKey in the receipt differs from its name, signatures repaired")
def _(ctx: Ctx) -> None:
    ctx.redo(0, receipt=lambda r: r.update(cacheKey=other_hex(r["cacheKey"])))


@case("receipt-content-key", "files named by a key that their content does not give, all else consistent")
def _(ctx: Ctx) -> None:
    ctx.redo(0, key="5" * 64)


@case("receipt-mode-0640", "receipt readable by the group")
def _(ctx: Ctx) -> None:
    ctx.names[0].receipt.chmod(0o640)


@case("receipt-symlink", "receipt is a symbolic link to a right copy")
def _(ctx: Ctx) -> None:
    ctx.names[0].receipt.symlink_to(ctx.move_out(ctx.names[0].receipt))


@case("receipt-folder", "receipt name is a folder")
def _(ctx: Ctx) -> None:
    ctx.names[0].receipt.unlink()
    ctx.names[0].receipt.mkdir(0o700)


@case(
    "receipt-fifo",
    "receipt name is a FIFO",
    allow=("refused",),
    why="the original reads it before looking at what it is, and waits for ever with the lock held",
)
def _(ctx: Ctx) -> None:
    ctx.names[0].receipt.unlink()
    os.mkfifo(ctx.names[0].receipt, 0o600)


@case("receipt-schema", "receipt names another schema, signatures repaired")
def _(ctx: Ctx) -> None:
    ctx.redo(0, receipt=lambda r: r.update(schema=r["schema"] + ".extra"))


@case("receipt-of-another-page", "page 1's receipt under page 0's name, locator re-signed for it")
def _(ctx: Ctx) -> None:
    theirs = ctx.names[1].receipt.read_bytes()
    ctx.redo(0, receipt_bytes=lambda raw: theirs)


@case("receipt-extra-field", "a further signed field in receipt and in artifact")
def _(ctx: Ctx) -> None:
    def edit(record):
        record["note"] = "x"
        record["artifact"]["codec"] = "raw"

    ctx.redo(0, receipt=edit)
