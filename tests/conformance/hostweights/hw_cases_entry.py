"""Cases of the artifact directory, of modes and links, and of the marker."""

from __future__ import annotations

import os

import hw_artifact
import hw_registry
import hw_store
from hw_artifact import canonical, opened, sha256
from hw_registry import INVALID_CORRUPT

registry = hw_registry.registry
case = registry.case


@case("entry", "directory carries the sticky bit")
def sticky(store, directory):
    store.artifacts["alpha"].path.chmod(0o1555)


@case("entry", "publication crashed after the rename, before the final chmod")
def publication_crash(store, directory):
    store.artifacts["alpha"].path.chmod(0o1755)


@case("entry", "deny marker present")
def denied(store, directory):
    key = store.artifacts["alpha"].key
    document = {"schema_version": 1, "stage": "validation", "reason": "checksum_mismatch", "message": "bad"}
    path = store.root / "deny" / f"{key}.json"
    path.write_bytes(canonical(document))
    path.chmod(0o444)


@case("entry", "deny marker without an artifact", subjects=("absent",))
def denied_absent(store, directory):
    from hw_engine import ABSENT

    (store.root / "deny" / f"{hw_artifact.identity_key(ABSENT)}.json").write_bytes(b"{}")


@case("entry", "artifact directory removed")
def removed(store, directory):
    hw_store.force_remove(store.artifacts["alpha"].path)


@case("entry", "artifact directory replaced by a symbolic link to a good copy")
def directory_symlink(store, directory):
    path = store.artifacts["alpha"].path
    path.chmod(0o755)
    path.rename(directory / "moved")
    (directory / "moved").chmod(0o555)
    path.symlink_to(directory / "moved")


@case("entry", "directory is writable by its owner")
def directory_writable(store, directory):
    store.artifacts["alpha"].path.chmod(0o755)


@case(
    "entry",
    "same, in a store opened without the permission checks",
    policy={"require_trusted_permissions": False},
)
def directory_writable_untrusted(store, directory):
    store.artifacts["alpha"].path.chmod(0o755)


@case("entry", "alpha's content sits under beta's key", subjects=("beta", "gamma"))
def wrong_key(store, directory):
    alpha, beta = store.artifacts["alpha"].path, store.artifacts["beta"].path
    hw_store.force_remove(beta)
    alpha.chmod(0o755)
    alpha.rename(beta)
    beta.chmod(0o555)


@case("entry", "an undeclared regular file inside")
def extra_file(store, directory):
    path = store.artifacts["alpha"].path
    with opened(path):
        (path / "notes.txt").write_bytes(b"x")
        (path / "notes.txt").chmod(0o444)


@case("entry", "READY.json is missing")
def ready_missing(store, directory):
    path = store.artifacts["alpha"].path
    with opened(path):
        (path / "READY.json").unlink()


@case("entry", "a declared payload is missing", subjects=("beta", "alpha"))
def payload_missing(store, directory):
    beta = store.artifacts["beta"]
    with opened(beta.path):
        beta.file_path("model-00002-of-00003.safetensors").unlink()


@case(
    "entry",
    "READY.json is a FIFO",
    also_accept=(INVALID_CORRUPT,),
    note="the reference implementation blocks forever in open(); a verifier must not",
)
def ready_fifo(store, directory):
    path = store.artifacts["alpha"].path
    with opened(path):
        (path / "READY.json").unlink()
        os.mkfifo(path / "READY.json", 0o444)


@case("entry", "READY.json is a directory")
def ready_directory(store, directory):
    path = store.artifacts["alpha"].path
    with opened(path):
        (path / "READY.json").unlink()
        (path / "READY.json").mkdir(mode=0o555)


@case("mode", "READY.json has an owner write bit")
def ready_writable(store, directory):
    store.artifacts["alpha"].file_path("READY.json").chmod(0o644)


@case("mode", "payload has an owner write bit")
def payload_writable(store, directory):
    alpha = store.artifacts["alpha"]
    alpha.file_path(alpha.first_file).chmod(0o644)


@case("mode", "READY.json has a second hard link")
def ready_hardlinked(store, directory):
    os.link(store.artifacts["alpha"].file_path("READY.json"), directory / "second")


@case("mode", "payload has a second hard link", subjects=("alpha", "beta"))
def payload_hardlinked(store, directory):
    alpha = store.artifacts["alpha"]
    os.link(alpha.file_path(alpha.first_file), directory / "second.safetensors")


@case("mode", "payload is a symbolic link to an identical file")
def payload_symlink(store, directory):
    alpha = store.artifacts["alpha"]
    target = alpha.file_path(alpha.first_file)
    (directory / "copy.safetensors").write_bytes(target.read_bytes())
    (directory / "copy.safetensors").chmod(0o444)
    with opened(alpha.path):
        target.unlink()
        target.symlink_to(directory / "copy.safetensors")


@case("mode", "payload belongs to another user", needs=("root",))
def payload_foreign_owner(store, directory):
    alpha = store.artifacts["alpha"]
    os.chown(alpha.file_path(alpha.first_file), 65534, -1)


@case("ready", "manifest digest does not match")
def manifest_digest(store, directory):
    store.artifacts["alpha"].edit_marker(lambda doc: doc.update(manifest_sha256=sha256(b"other")))


@case("ready", "content digest differs from the manifest's")
def content_digest(store, directory):
    store.artifacts["alpha"].edit_marker(lambda doc: doc.update(artifact_content_sha256=sha256(b"other")))


@case("ready", "unknown field")
def unknown_field(store, directory):
    store.artifacts["alpha"].edit_marker(lambda doc: doc.update(host="node-7"))


@case("ready", "schema_version 2")
def schema_two(store, directory):
    store.artifacts["alpha"].edit_marker(lambda doc: doc.update(schema_version=2))


@case("ready", "integrity_mode is not full_checksum")
def integrity_mode(store, directory):
    store.artifacts["alpha"].edit_marker(lambda doc: doc.update(integrity_mode="sampled"))


@case("ready", "publication_id is not ASCII")
def publication_id_non_ascii(store, directory):
    store.artifacts["alpha"].edit_marker(lambda doc: doc.update(publication_id="\u043f\u0443\u0431"))


@case("ready", "document is an array")
def array(store, directory):
    store.artifacts["alpha"].overwrite("READY.json", b"[]")


@case("ready", "repeated key, the last value is the right one", also_accept=(INVALID_CORRUPT,))
def duplicate_key(store, directory):
    alpha = store.artifacts["alpha"]
    data = canonical(alpha.read_marker())
    alpha.overwrite("READY.json", b'{"integrity_mode":"none",' + data[1:])
