"""The two documents that say what a store is: domain.json and domain-policy.json.

Pure: reading them from values, the values they are compared with, and their bytes. Opening and creating a
store on disk is ``opening``'s work.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from hwctl.stores.hostweights import canonical
from hwctl.stores.hostweights.fields import (
    SCHEMA,
    UNSUPPORTED_SCHEMA,
    Problems,
    kind,
    other_schema,
    section,
    text,
)
from hwctl.stores.hostweights.layout import DOMAIN, POLICY

SCOPES = ("node", "numa")
CLASSES = ("disk", "tmpfs")
BACKEND = "local_filesystem"
EVICTION = "none"

_DOMAIN = frozenset(
    {
        "schema_version",
        "domain_uuid",
        "scope",
        "domain_id",
        "backend",
        "storage_class",
        "filesystem_type",
    }
)
_POLICY = frozenset(
    {
        "schema_version",
        "policy_version",
        "max_artifact_bytes",
        "max_store_bytes",
        "min_free_bytes",
        "eviction",
    }
)


@dataclass(frozen=True, slots=True)
class Domain:
    """What domain.json records. ``storage_class`` is disk or tmpfs, ``filesystem_type`` the kernel's name."""

    scope: str
    domain_id: str
    storage_class: str
    filesystem_type: str
    domain_uuid: str

    def document(self) -> dict[str, object]:
        return {
            "schema_version": SCHEMA,
            "domain_uuid": self.domain_uuid,
            "scope": self.scope,
            "domain_id": self.domain_id,
            "backend": BACKEND,
            "storage_class": self.storage_class,
            "filesystem_type": self.filesystem_type,
        }


@dataclass(frozen=True, slots=True)
class Capacity:
    """Limits in bytes; None is no limit. vLLM-Omni's own server opens only a store without any."""

    max_artifact_bytes: int | None = None
    max_store_bytes: int | None = None
    min_free_bytes: int = 0

    def document(self) -> dict[str, object]:
        return {
            "schema_version": SCHEMA,
            "policy_version": 1,
            "max_artifact_bytes": self.max_artifact_bytes,
            "max_store_bytes": self.max_store_bytes,
            "min_free_bytes": self.min_free_bytes,
            "eviction": EVICTION,
        }


def new_domain(scope: str, domain_id: str, storage_class: str, filesystem_type: str) -> Domain:
    """A domain with a fresh id."""
    return Domain(scope, domain_id, storage_class, filesystem_type, uuid.uuid4().hex)


def parse_domain(data: bytes, file: str = DOMAIN) -> tuple[Domain | None, Problems]:
    """The domain in these bytes, or None with the reasons."""
    problems = Problems(file)
    top = _document(data, _DOMAIN, problems)
    if top is None:
        return None, problems
    _must_be(top, "schema_version", (SCHEMA,), problems)
    _must_be(top, "scope", SCOPES, problems)
    _must_be(top, "backend", (BACKEND,), problems)
    _must_be(top, "storage_class", CLASSES, problems)
    domain = Domain(
        scope=text(top, "scope", "", problems),
        domain_id=text(top, "domain_id", "", problems),
        storage_class=text(top, "storage_class", "", problems),
        filesystem_type=text(top, "filesystem_type", "", problems),
        domain_uuid=text(top, "domain_uuid", "", problems),
    )
    return (None if problems.found else domain), problems


def parse_policy(data: bytes, file: str = POLICY) -> tuple[Capacity | None, Problems]:
    """The limits in these bytes, or None with the reasons. Only the version is held to its exact type."""
    problems = Problems(file)
    top = _document(data, _POLICY, problems)
    if top is None:
        return None, problems
    _must_be(top, "schema_version", (SCHEMA,), problems)
    _must_be(top, "eviction", (EVICTION,), problems)
    version = top["policy_version"]
    if type(version) is not int or version < 1:
        problems.add("bad-value", "policy_version must be an integer of at least 1", actual=kind(version))
    capacity = Capacity(
        _limit(top, "max_artifact_bytes", problems),
        _limit(top, "max_store_bytes", problems),
        _at_least_zero(top, "min_free_bytes", problems),
    )
    return (None if problems.found else capacity), problems


def _document(data: bytes, names: frozenset[str], problems: Problems) -> Mapping[str, object] | None:
    try:
        parsed = canonical.parse(data)
    except canonical.BadDocument as exc:
        problems.found.append(exc.finding(problems.file))
        return None
    version = other_schema(parsed.value)
    if version is not None:
        # A later vLLM-Omni adds a field to the policy and says 2: no damage, and the fields say nothing here.
        words = f"schema {version} is not known here, {SCHEMA} is: a later version made this store"
        problems.add(UNSUPPORTED_SCHEMA, words, expected=SCHEMA, actual=version)
        return None
    return section(parsed.value, "", names, problems)


def _must_be(top: Mapping[str, object], name: str, allowed: tuple[object, ...], problems: Problems) -> None:
    # Compared as upstream compares: true and 1.0 pass for 1 in these two documents.
    if top[name] not in allowed:
        problems.add("bad-value", f"{name} is {kind(top[name])}", expected=allowed[0], actual=kind(top[name]))


def _limit(top: Mapping[str, object], name: str, problems: Problems) -> int | None:
    return None if top[name] is None else _number(top, name, 1, problems)


def _at_least_zero(top: Mapping[str, object], name: str, problems: Problems) -> int:
    return _number(top, name, 0, problems)


def _number(top: Mapping[str, object], name: str, minimum: int, problems: Problems) -> int:
    value = top[name]
    if isinstance(value, (int, float)) and value >= minimum and value == int(value):
        return int(value)
    problems.add("bad-value", f"{name} must be a whole number of at least {minimum}", actual=kind(value))
    return minimum
