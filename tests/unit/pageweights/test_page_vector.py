"""The test vector of the format document: one page, every byte and every digest of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from hwctl.fs.deadline import Deadline
from hwctl.stores.pageweights import documents, records, roots
from hwctl.stores.pageweights.authority import Authority, content_key, read_authority
from hwctl.stores.pageweights.geometry import IDS, WEIGHTS
from hwctl.stores.pageweights.publication import publish

CANONICAL = (
    b'{"contractRevision":1,"materializedDtype":"float32","pageId":0,"sourceFileIdentity":[2049,4242,4096,'
    b'1690000000123456789,1690000001000000007],"sourceFormatRevision":1,"sourceObjectBytes":4096,'
    b'"sourceObjectSha256":"8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8"}'
)
PREFIX = "6ecea42843a162878a3dea4a474bb8e2175959836e55239d604efeec16cf8334"
ARTIFACT = "6f64aa8411abf235683fc71386cb15851b949fe15e45fd7a7456678dc9df9829"
GEOMETRY = "d3ba2ee05fa467127110bb87c3344859a8b2e02485f5aedef8a84607a1d4e4f5"
KEY = "7b409736f2c010c513797bcaf74fc21a3782ac16e5c6e54d9c2246e8abb4d53c"
RECEIPT = "1ddd69b13e776d0ab1944197a630280b3aaba702e5c16db905d2bc3d0a0315d8"
RECEIPT_SIGNATURE = "b6923c3fd7c2988d459075da9b751474005a74ad868fe3615764172bab542a71"
LOCATOR = "e24501108baf463d4a9276a68f5ee3c99f813ca067aabdb1d4592be8f1b7423d"
LOCATOR_SIGNATURE = "92e6fb3187c98e2ae9c1e62bfa84911a4e61ce49f751569029298e409b45dfc9"
SHAPES = {
    "ffn_mode_t": (1, 3),
    "gate_t": (1, 8, 4),
    "up_t": (1, 8, 4),
    "down_t": (1, 4, 8),
    "glyph_down_t": (1, 2, 4),
    "glyph_up_t": (1, 4, 2),
    "translation_gate_t": (1, 4),
    "outcome_memory_t": (1, 2, 4),
    "repair_memory_t": (1, 2, 4),
    "transfer_memory_t": (1, 2, 4),
}


def authority() -> Authority:
    found = read_authority(records.parse_json(CANONICAL))
    assert isinstance(found, Authority)
    return found


def geometry() -> dict[str, object]:
    tensors = {name: {"shape": list(shape), "dtype": "float32"} for name, shape in SHAPES.items()}
    return {IDS: {"shape": [1], "dtype": "int64"}, **tensors}


def digest_and_size(path: Path) -> tuple[str, int]:
    raw = path.read_bytes()
    return hashlib.sha256(raw).hexdigest(), len(raw)


def test_the_authority_gives_the_prefix() -> None:
    assert records.canonical(authority().record) == CANONICAL
    assert authority().prefix == PREFIX


def test_the_documents_have_these_bytes() -> None:
    assert records.digest(geometry()) == GEOMETRY
    assert content_key(authority(), ARTIFACT, GEOMETRY) == KEY
    receipt = documents.receipt_record(authority(), KEY, geometry(), ARTIFACT, 1364)
    raw = records.stored(receipt)
    assert (hashlib.sha256(raw).hexdigest(), len(raw)) == (RECEIPT, 1629)
    assert receipt[records.SIGNATURE] == RECEIPT_SIGNATURE
    locator = documents.locator_record(authority(), KEY, RECEIPT)
    raw = records.stored(locator)
    assert (hashlib.sha256(raw).hexdigest(), len(raw)) == (LOCATOR, 698)
    assert locator[records.SIGNATURE] == LOCATOR_SIGNATURE


def test_publishing_writes_exactly_these_files(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from hwctl.stores.pageweights.offers import from_torch

    weights = {IDS: torch.tensor([0])}
    for salt, name in enumerate(WEIGHTS, start=1):
        shape = SHAPES[name]
        count = torch.Size(shape).numel()
        numbers = [(((i * 37 + salt * 11) % 251) - 125) / 64 for i in range(count)]
        weights[name] = torch.tensor(numbers).reshape(shape)
    root_path = tmp_path / "cache"
    with roots.writable(root_path, create=True) as root:
        publish(root, authority(), from_torch(weights), wait=Deadline.now())
    assert digest_and_size(root_path / f"{PREFIX}.{KEY}.safetensors") == (ARTIFACT, 1364)
    assert digest_and_size(root_path / f"{PREFIX}.{KEY}.receipt.json") == (RECEIPT, 1629)
    assert digest_and_size(root_path / f"{PREFIX}.locator.json") == (LOCATOR, 698)
    assert sorted(path.name for path in root_path.iterdir()) == sorted(
        [
            ".eviction.lock",
            f".{PREFIX}.lock",
            f"{PREFIX}.{KEY}.safetensors",
            f"{PREFIX}.{KEY}.receipt.json",
            f"{PREFIX}.locator.json",
        ]
    )


def test_the_vector_is_that_of_its_own_source() -> None:
    """The digest in the authority is that of the word the document made it from."""
    assert hashlib.sha256(b"alpha").hexdigest() in CANONICAL.decode()
