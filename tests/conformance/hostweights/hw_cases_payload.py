"""Cases of payload files, of two defects at once, of leftovers and of locks."""

from __future__ import annotations

import os
import struct

import hw_artifact
import hw_registry
from hw_artifact import canonical, opened, safetensors_bytes, sha256
from hw_cases_entry import denied, extra_file, payload_writable
from hw_registry import flip, refresh_content, tensor

registry = hw_registry.registry
case = registry.case


@case("payload", "last byte cut off", subjects=("alpha", "gamma"))
def truncated(store, directory):
    alpha = store.artifacts["alpha"]
    path = alpha.file_path(alpha.first_file)
    path.chmod(0o600)
    os.truncate(path, path.stat().st_size - 1)
    path.chmod(0o444)


@case("payload", "one bit flipped in tensor data", subjects=("beta", "alpha"))
def data_bit(store, directory):
    beta = store.artifacts["beta"]
    flip(beta.file_path("model-00003-of-00003.safetensors"), -5)


@case("payload", "one byte changed inside __metadata__")
def header_byte(store, directory):
    alpha = store.artifacts["alpha"]
    path = alpha.file_path(alpha.first_file)
    flip(path, path.read_bytes().index(b'"pt"') + 1, 0x01)


@case("payload", "header length far beyond the file")
def header_length_huge(store, directory):
    alpha = store.artifacts["alpha"]
    data = alpha.file_path(alpha.first_file).read_bytes()
    alpha.replace_payload(alpha.first_file, struct.pack("<Q", 1 << 60) + data[8:], reseal=True)


@case("payload", "empty file, manifest agrees")
def empty(store, directory):
    alpha = store.artifacts["alpha"]
    alpha.replace_payload(alpha.first_file, b"", reseal=True)


@case("payload", "two tensors share bytes, manifest agrees", subjects=("gamma",))
def overlapping(store, directory):
    gamma = store.artifacts["gamma"]
    data = gamma.file_path("weights.safetensors").read_bytes()
    header = hw_artifact.header_of(data)
    begin = header["слой.вес"]["data_offsets"][0]
    header["\U0001f9e9.scale"]["data_offsets"] = [begin, begin + 8]
    body = data[8 + struct.unpack("<Q", data[:8])[0] :]
    changed = safetensors_bytes([], header_override=canonical(header)) + body
    gamma.replace_payload("weights.safetensors", changed, reseal=True)


@case("payload", "an additional tensor, manifest sizes agree", subjects=("gamma",))
def extra_tensor(store, directory):
    gamma = store.artifacts["gamma"]
    entries = [
        (item.key, hw_artifact.ALL_DTYPES[item.dtype][0], item.shape, item.payload("gamma"))
        for item in gamma.files["weights.safetensors"]
    ]
    data = safetensors_bytes([*entries, ("zz", "U8", (2,), b"ab")])
    gamma.replace_payload("weights.safetensors", data, reseal=True)


@case("payload", "a tensor has another shape than the manifest says", subjects=("gamma",))
def shape_differs(store, directory):
    gamma = store.artifacts["gamma"]
    entries = [
        (item.key, hw_artifact.ALL_DTYPES[item.dtype][0], item.shape[::-1], item.payload("gamma"))
        for item in gamma.files["weights.safetensors"]
    ]
    gamma.replace_payload("weights.safetensors", safetensors_bytes(entries), reseal=True)


@case("payload", "valid container with another tensor order and without __metadata__", subjects=("gamma",))
def other_layout(store, directory):
    gamma = store.artifacts["gamma"]
    entries = [
        (item.key, hw_artifact.ALL_DTYPES[item.dtype][0], item.shape, item.payload("gamma"))
        for item in gamma.files["weights.safetensors"]
    ]
    gamma.replace_payload("weights.safetensors", safetensors_bytes(entries[::-1], metadata={}), reseal=True)


@case("payload", "bool tensor holding the byte 2")
def bool_two(store, directory):
    alpha = store.artifacts["alpha"]
    data = bytearray(alpha.file_path(alpha.first_file).read_bytes())
    start = (
        8 + struct.unpack("<Q", data[:8])[0] + hw_artifact.header_of(bytes(data))["a.flag"]["data_offsets"][0]
    )
    data[start] = 2

    def change(doc):
        tensor(doc, "a.flag")["sha256"] = sha256(bytes(data[start : start + 3]))
        refresh_content(doc)

    alpha.replace_payload(alpha.first_file, bytes(data), reseal=True, change=change)


@case("payload", "dtypes outside the writer's table", subjects=("wide",))
def wide_dtypes(store, directory):
    store.publish(
        hw_artifact.Artifact(
            "wide",
            hw_artifact.identity("wide"),
            {
                "w.safetensors": [
                    hw_artifact.Tensor("a", "torch.uint64", (2,)),
                    hw_artifact.Tensor("b", "torch.uint32", (3,)),
                    hw_artifact.Tensor("c", "torch.uint16", (1, 3)),
                ]
            },
        )
    )


@case("order", "wrong manifest digest and an extra file")
def names_before_digest(store, directory):
    alpha = store.artifacts["alpha"]
    alpha.edit_marker(lambda doc: doc.update(manifest_sha256=sha256(b"other")))
    extra_file(store, directory)


@case("order", "unsupported marker schema and an extra file")
def schema_before_names(store, directory):
    store.artifacts["alpha"].edit_marker(lambda doc: doc.update(schema_version=3))
    extra_file(store, directory)


@case("order", "payload has the wrong size and is writable")
def size_before_mode(store, directory):
    truncated(store, directory)
    payload_writable(store, directory)


@case("order", "sticky directory that is also denied and empty")
def deny_before_all(store, directory):
    denied(store, directory)
    alpha = store.artifacts["alpha"]
    with opened(alpha.path):
        for child in alpha.path.iterdir():
            child.unlink()
    alpha.path.chmod(0o1555)


@case("order", "broken container whose digest is also wrong")
def digest_before_container(store, directory):
    alpha = store.artifacts["alpha"]
    data = alpha.file_path(alpha.first_file).read_bytes()
    alpha.overwrite(alpha.first_file, b"\xff" * 8 + data[8:])


@case("leftover", "staging directory of a dead publisher")
def stale_tmp(store, directory):
    key = store.artifacts["alpha"].key
    path = store.root / "tmp" / f"{key}.4242.{'0' * 32}"
    path.mkdir(mode=0o700)
    (path / "model.safetensors").write_bytes(b"\0" * 100)


@case("leftover", "quarantine move stopped after the rename")
def half_quarantined(store, directory):
    alpha = store.artifacts["alpha"]
    target = store.root / "quarantine" / f"{alpha.key}.validation_failure.{'1' * 32}"
    alpha.path.chmod(0o755)
    alpha.path.rename(target)
    target.chmod(0o1755)


@case("leftover", "cleanup tombstone that was not deleted")
def tombstone(store, directory):
    alpha = store.artifacts["alpha"]
    target = store.root / "quarantine" / f"{alpha.key}.cleanup.{'2' * 32}"
    alpha.path.chmod(0o755)
    alpha.path.rename(target)
    target.chmod(0o555)


@case(
    "lock",
    "somebody holds the artifact lock exclusively",
    subjects=("alpha", "beta"),
    deadline_s=0.3,
    hold=(("artifact", "alpha", "exclusive"),),
)
def exclusive_held(store, directory):
    pass


@case(
    "lock",
    "somebody holds the artifact lock shared and the build lock",
    deadline_s=0.3,
    hold=(("artifact", "alpha", "shared"), ("build", "alpha", "exclusive")),
)
def shared_held(store, directory):
    pass
