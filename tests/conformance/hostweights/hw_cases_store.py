"""Cases of a whole store: untouched, and with odd or damaged documents."""

from __future__ import annotations

import os

import hw_registry

registry = hw_registry.registry
case = registry.case


@case("base", "untouched store: every artifact is a hit", subjects=("alpha", "beta", "gamma", "absent"))
def valid(store, directory):
    pass


@case("base", "lookup in a store that has extra entries in its root", subjects=("alpha", "beta"))
def foreign_root_entries(store, directory):
    digests = store.root / "source-digests-v1" / "entries"
    digests.mkdir(parents=True)
    (digests / "note.json").write_bytes(b"{}")
    (store.root / "README").write_text("operator notes\n")


@case("base", "root reached through a symbolic link", open_path="link")
def root_symlink(store, directory):
    (directory / "link").symlink_to("store")


@case("domain", "root is group-writable")
def root_group_writable(store, directory):
    store.root.chmod(0o770)


@case("domain", "scope recorded as numa, opened as node")
def scope_mismatch(store, directory):
    store.edit_json("domain.json", lambda doc: doc.update(scope="numa"))


@case("domain", "domain.json has a field that is not in the schema")
def domain_extra_field(store, directory):
    store.edit_json("domain.json", lambda doc: doc.update(comment="x"))


@case("domain", "domain.json schema_version is true instead of 1")
def domain_schema_true(store, directory):
    store.edit_json("domain.json", lambda doc: doc.update(schema_version=True))


@case("domain", "domain.json names the other storage class")
def storage_class_recorded_wrong(store, directory):
    other = {"disk": "tmpfs", "tmpfs": "disk"}
    store.edit_json("domain.json", lambda doc: doc.update(storage_class=other[doc["storage_class"]]))


@case(
    "domain", "caller asks for the storage class the mount does not have", policy={"storage_class": "other"}
)
def storage_class_requested_wrong(store, directory):
    pass


@case("domain", "domain_uuid is empty")
def domain_uuid_empty(store, directory):
    store.edit_json("domain.json", lambda doc: doc.update(domain_uuid=""))


@case("domain", "domain_uuid has a non-ASCII character", subjects=("alpha", "beta"))
def domain_uuid_non_ascii(store, directory):
    store.edit_json("domain.json", lambda doc: doc.update(domain_uuid="d\u00e9ad"))


@case("domain", "domain.json is a symbolic link to a valid document")
def domain_symlink(store, directory):
    (store.root / "domain.json").rename(directory / "elsewhere.json")
    (store.root / "domain.json").symlink_to("../elsewhere.json")


@case("domain", "domain.json is writable by its owner (not checked)")
def domain_writable(store, directory):
    (store.root / "domain.json").chmod(0o644)


@case("domain", "domain.json is missing and gets recreated")
def domain_missing(store, directory):
    (store.root / "domain.json").unlink()


@case("domain", "domain.json is cut in the middle")
def domain_truncated(store, directory):
    data = (store.root / "domain.json").read_bytes()
    store.write_file("domain.json", data[: len(data) // 2])


@case("domain", "domain.json is a sparse file above the metadata limit")
def domain_too_large(store, directory):
    store.write_file("domain.json", b"{}", mode=0o644)
    os.truncate(store.root / "domain.json", 64 * 1024 * 1024 + 1)


@case("domain", "recorded max_store_bytes differs from the requested one")
def policy_limit_mismatch(store, directory):
    store.edit_json("domain-policy.json", lambda doc: doc.update(max_store_bytes=1 << 40))


@case("domain", "policy_version 0")
def policy_version_zero(store, directory):
    store.edit_json("domain-policy.json", lambda doc: doc.update(policy_version=0))


@case("domain", "domain-policy.json is missing and gets recreated")
def policy_missing(store, directory):
    (store.root / "domain-policy.json").unlink()


@case("domain", "locks directory is missing and gets recreated")
def locks_missing(store, directory):
    (store.root / "locks").rmdir()


@case("domain", "a requested capacity that equals the recorded one", policy={"max_store_bytes": 1 << 40})
def policy_limit_match(store, directory):
    store.edit_json("domain-policy.json", lambda doc: doc.update(max_store_bytes=1 << 40))
