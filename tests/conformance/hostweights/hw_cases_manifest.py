"""Cases of the manifest."""

from __future__ import annotations

import json
import os

import hw_artifact
import hw_registry
from hw_artifact import canonical, sha256
from hw_registry import INVALID_CHECKSUM, INVALID_CORRUPT, refresh_content, tensor

registry = hw_registry.registry
case = registry.case


@case("manifest", "same document with spaces, line breaks and another key order")
def reformatted(store, directory):
    alpha = store.artifacts["alpha"]
    manifest = alpha.read_manifest()
    shuffled = {key: manifest[key] for key in sorted(manifest, reverse=True)}
    alpha.overwrite("manifest.json", json.dumps(shuffled, indent=3).encode())


@case("manifest", "same document in UTF-16 with a byte order mark", also_accept=(INVALID_CORRUPT,))
def utf16(store, directory):
    alpha = store.artifacts["alpha"]
    alpha.overwrite("manifest.json", canonical(alpha.read_manifest()).decode().encode("utf-16"))


@case("manifest", "raw UTF-8 instead of escapes", subjects=("gamma", "beta"))
def raw_utf8(store, directory):
    for label in ("gamma", "beta"):
        artifact = store.artifacts[label]
        artifact.overwrite("manifest.json", json.dumps(artifact.read_manifest(), ensure_ascii=False).encode())


@case(
    "manifest",
    "READY.json carries the digest of raw UTF-8 bytes (a serializer that does not escape)",
    subjects=("gamma",),
)
def digest_of_raw_utf8(store, directory):
    gamma = store.artifacts["gamma"]
    manifest = gamma.read_manifest()
    raw = json.dumps(manifest, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    gamma.reseal(manifest, manifest_bytes=raw, manifest_sha256=sha256(raw))


@case("manifest", "repeated key whose last value differs", also_accept=(INVALID_CORRUPT,))
def duplicate_key_last_differs(store, directory):
    alpha = store.artifacts["alpha"]
    data = canonical(alpha.read_manifest())
    alpha.overwrite("manifest.json", data[:-1] + b',"restorer_schema":"other"}')


@case("manifest", "sparse file above the metadata limit")
def too_large(store, directory):
    alpha = store.artifacts["alpha"]
    alpha.overwrite("manifest.json", canonical(alpha.read_manifest()), mode=0o644)
    os.truncate(alpha.file_path("manifest.json"), 64 * 1024 * 1024 + 1)
    alpha.file_path("manifest.json").chmod(0o444)


@case("manifest", "unknown top-level field")
def unknown_field_manifest(store, directory):
    store.artifacts["alpha"].edit_manifest(lambda doc: doc.update(created="today"))


@case("manifest", "unknown field in one tensor entry")
def unknown_tensor_field(store, directory):
    store.artifacts["alpha"].edit_manifest(lambda doc: doc["tensors"][3].update(offset=0))


@case("manifest", "two tensor entries swapped")
def tensor_order(store, directory):
    def change(doc):
        doc["tensors"][1], doc["tensors"][2] = doc["tensors"][2], doc["tensors"][1]

    store.artifacts["alpha"].edit_manifest(change)


@case("manifest", "one tensor listed twice")
def tensor_twice(store, directory):
    store.artifacts["alpha"].edit_manifest(lambda doc: doc["tensors"].insert(0, dict(doc["tensors"][0])))


@case("manifest", "schema_version true")
def schema_true(store, directory):
    store.artifacts["alpha"].edit_manifest(lambda doc: doc.update(schema_version=True))


@case("manifest", "schema_version 2")
def schema_two_manifest(store, directory):
    store.artifacts["alpha"].edit_manifest(lambda doc: doc.update(schema_version=2))


@case("manifest", "a dimension is true")
def dimension_true(store, directory):
    def change(doc):
        tensor(doc, "n.fp8d")["shape"] = [True, 1]
        refresh_content(doc)

    store.artifacts["alpha"].edit_manifest(change)


@case("manifest", "a dimension is 3.0")
def dimension_float(store, directory):
    def change(doc):
        tensor(doc, "c.bias")["shape"] = [3.0]
        refresh_content(doc)

    store.artifacts["alpha"].edit_manifest(change)


@case("manifest", "a negative stride")
def stride_negative(store, directory):
    def change(doc):
        tensor(doc, "c.bias")["stride"] = [-1]
        refresh_content(doc)

    store.artifacts["alpha"].edit_manifest(change)


@case("manifest", "strides of the transposed tensor")
def stride_transposed(store, directory):
    def change(doc):
        tensor(doc, "b.weight")["stride"] = [1, 4]
        refresh_content(doc)

    store.artifacts["alpha"].edit_manifest(change)


@case("manifest", "nbytes too small by one element")
def nbytes_wrong(store, directory):
    def change(doc):
        tensor(doc, "c.bias")["nbytes"] = 8
        refresh_content(doc)

    store.artifacts["alpha"].edit_manifest(change)


@case("manifest", "dtype of equal width")
def dtype_wrong(store, directory):
    def change(doc):
        tensor(doc, "b.weight")["dtype"] = "torch.float16"
        refresh_content(doc)

    store.artifacts["alpha"].edit_manifest(change)


@case("manifest", "tensor kind outside the enumeration")
def kind_unknown(store, directory):
    def change(doc):
        tensor(doc, "c.bias")["kind"] = "constant"
        refresh_content(doc)

    store.artifacts["alpha"].edit_manifest(change)


@case(
    "manifest",
    "per-tensor digest is wrong, everything else consistent",
    also_accept=(INVALID_CHECKSUM,),
    note="the reference implementation never compares per-tensor digests with the data",
)
def tensor_digest_wrong(store, directory):
    def change(doc):
        tensor(doc, "c.bias")["sha256"] = sha256(b"other")
        refresh_content(doc)

    store.artifacts["alpha"].edit_manifest(change)


@case("manifest", "file digest is wrong, marker consistent")
def file_digest_wrong(store, directory):
    store.artifacts["alpha"].edit_manifest(lambda doc: doc["files"][0].update(sha256=sha256(b"other")))


@case("manifest", "file size is wrong, marker consistent")
def file_size_wrong(store, directory):
    store.artifacts["alpha"].edit_manifest(
        lambda doc: doc["files"][0].update(size=doc["files"][0]["size"] - 1)
    )


@case("manifest", "file name with a directory part")
def file_name_nested(store, directory):
    def change(doc):
        for entry in [*doc["files"], *doc["tensors"]]:
            entry["file_name"] = "sub/" + entry["file_name"]

    store.artifacts["alpha"].edit_manifest(change)


@case("manifest", "identity of another artifact, key recomputed")
def identity_other(store, directory):
    def change(doc):
        doc["identity"]["source"]["revision"] = "other"
        doc["artifact_key"] = hw_artifact.identity_key(doc["identity"])

    store.artifacts["alpha"].edit_manifest(change)


@case("manifest", "producer_schema differs from the identity's manifest_schema")
def producer_schema(store, directory):
    store.artifacts["alpha"].edit_manifest(lambda doc: doc.update(producer_schema="fixture-manifest-v2"))


@case("manifest", "identity section lacks a field")
def identity_field_missing(store, directory):
    def change(doc):
        del doc["identity"]["layout"]["sequence_parallel_backend"]
        doc["artifact_key"] = hw_artifact.identity_key(doc["identity"])

    store.artifacts["alpha"].edit_manifest(change)


@case("manifest", "adaptation other than base without a fingerprint", subjects=("gamma",))
def adaptation_without_fingerprint(store, directory):
    def change(doc):
        doc["identity"]["adaptation"]["fingerprint"] = None
        doc["artifact_key"] = hw_artifact.identity_key(doc["identity"])

    store.artifacts["gamma"].edit_manifest(change)


@case("manifest", "NaN inside format_metadata")
def nan(store, directory):
    alpha = store.artifacts["alpha"]
    data = canonical(alpha.read_manifest())
    alpha.overwrite("manifest.json", data.replace(b'"format_metadata":{}', b'"format_metadata":{"x":NaN}'))


@case(
    "manifest",
    "format_metadata nested 100000 deep",
    also_accept=(INVALID_CORRUPT,),
    note="the reference implementation raises RecursionError and keeps the shared lock; "
    "a verifier must answer and continue",
)
def nested(store, directory):
    alpha = store.artifacts["alpha"]
    data = canonical(alpha.read_manifest())
    deep = b"[" * 100000 + b"]" * 100000
    alpha.overwrite("manifest.json", data.replace(b'"format_metadata":{}', b'"format_metadata":' + deep))


@case("manifest", "no tensors")
def tensors_empty(store, directory):
    def change(doc):
        doc["tensors"] = []
        refresh_content(doc)

    store.artifacts["alpha"].edit_manifest(change)


@case("manifest", "tensor in a file that is not declared", subjects=("beta",))
def tensor_in_undeclared_file(store, directory):
    store.artifacts["beta"].edit_manifest(
        lambda doc: doc["tensors"][0].update(file_name="model-x.safetensors")
    )


@case("manifest", "format_metadata changed without a new marker", subjects=("beta",))
def metadata_not_resealed(store, directory):
    beta = store.artifacts["beta"]
    manifest = beta.read_manifest()
    manifest["format_metadata"]["tensor_count"] = 13
    beta.overwrite("manifest.json", canonical(manifest))


@case("manifest", "an identity float spelled differently (0.10 for 0.1)", subjects=("beta",))
def float_spelling(store, directory):
    beta = store.artifacts["beta"]
    data = canonical(beta.read_manifest())
    beta.overwrite("manifest.json", data.replace(b'"ratio":0.1', b'"ratio":1.0e-1'))
