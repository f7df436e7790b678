"""Names to the last character, the rules for the root and for files, and the budget formula."""

from __future__ import annotations

import os
import stat

import pytest

from hwctl.stores.pageweights import layout
from hwctl.stores.pageweights.layout import Kind, parse_name

P, K = "0123456789abcdef" * 4, "fedcba9876543210" * 4


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"{P}.locator.json", Kind.LOCATOR),
        (f"{P}.{K}.receipt.json", Kind.RECEIPT),
        (f"{P}.{K}.safetensors", Kind.ARTIFACT),
        (f".{P}.lock", Kind.LOCK),
        (".eviction.lock", Kind.LOCK),
        (f".{P}.4194000.140000000000000.1700000000000000000.tmp", Kind.TEMPORARY),
        (f".{P}.locator.json.4194000.1.tmp", Kind.TEMPORARY),
        (f".{P}.{K}.receipt.json.1.2.tmp", Kind.TEMPORARY),
        (".tmpAb3dEf", Kind.LIBRARY_TEMPORARY),
        ("quarantine", Kind.QUARANTINE),
    ],
)
def test_a_name_of_the_cache_is_taken_apart(name: str, kind: Kind) -> None:
    parsed = parse_name(name)
    assert parsed.kind is kind
    assert parsed.prefix == (P if P in name else None)
    assert parsed.key == (K if K in name and kind is not Kind.TEMPORARY else None)


@pytest.mark.parametrize(
    "name",
    [
        "",
        P,
        "notes.locator.json",
        "model.safetensors",
        f"{P}.safetensors",
        f"{P.upper()}.locator.json",
        f"{P}.locator.json\n",
        f"{P}.locator.json.bak",
        f"x{P}.locator.json",
        f"{P[:-1]}.locator.json",
        f"{P}.{K[:-1]}.receipt.json",
        f".{P}.lock2",
        f".{P}.1.2.tmp",
        f".{P}.1.2.3.4.tmp",
        f".{P}.1.-2.3.tmp",
        f".{P}.{K}.safetensors.1.2.tmp",
        f".{P}.locator.json.٣.1.tmp",
        ".tmpAb3dE",
        ".tmpAb3dEfg",
        ".tmpAb3d_f",
        ".tmp",
        "quarantine2",
        ".hwctl-probe.1.0",
    ],
)
def test_whatever_else_lies_there_is_foreign(name: str) -> None:
    """REC-07: one character off is somebody else's file."""
    assert parse_name(name) == layout.Name(Kind.FOREIGN)


def test_names_are_spelled_as_they_are_parsed() -> None:
    spelled = {
        layout.locator_name(P): Kind.LOCATOR,
        layout.receipt_name(P, K): Kind.RECEIPT,
        layout.artifact_name(P, K): Kind.ARTIFACT,
        layout.lock_name(P): Kind.LOCK,
        layout.artifact_temporary(P, 1, 2, 3): Kind.TEMPORARY,
        layout.document_temporary(layout.locator_name(P), 1, 2): Kind.TEMPORARY,
        layout.document_temporary(layout.receipt_name(P, K), 1, 2): Kind.TEMPORARY,
    }
    assert {name: parse_name(name).kind for name in spelled} == spelled


def test_quarantine_names_carry_the_prefix() -> None:
    assert layout.quarantined_prefix(f"{P}.{'a' * 32}") == P
    for other in (P, f"{P}.{'a' * 31}", f"{P}.{'A' * 32}", f"{P}.{'a' * 32}.x"):
        assert layout.quarantined_prefix(other) is None


@pytest.mark.parametrize("value", [P[:-1], P + "0", P.upper(), "g" * 64, 5, None, P.encode(), f"{P}\n"])
def test_only_64_lower_case_hex_characters_are_a_digest(value: object) -> None:
    assert layout.is_digest(P) and not layout.is_digest(value)


def made(mode: int, uid: int = 1000) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, uid, 1, 0, 0, 0, 0))


def test_a_root_is_a_directory_of_its_owner_alone() -> None:
    assert layout.judge_root(made(stat.S_IFDIR | 0o700), 1000) == ()
    assert layout.judge_root(made(stat.S_IFDIR | 0o2500), 1000) == ()
    for mode, uid in (
        (stat.S_IFDIR | 0o710, 1000),
        (stat.S_IFDIR | 0o701, 1000),
        (stat.S_IFREG | 0o600, 1000),
    ):
        assert [f.code for f in layout.judge_root(made(mode, uid), 1000)] == ["root-unprotected"]
    assert [f.code for f in layout.judge_root(made(stat.S_IFDIR | 0o755, 7), 1000)] == [
        "root-unprotected"
    ] * 2


def test_a_file_is_regular_and_of_its_owner_alone() -> None:
    for mode in (0o400, 0o600, 0o700, 0o4600):
        assert layout.judge_file(made(stat.S_IFREG | mode), 1000, "x") == ()
    for mode, uid in ((stat.S_IFREG | 0o640, 1000), (stat.S_IFREG | 0o600, 0), (stat.S_IFIFO | 0o600, 1000)):
        assert [f.code for f in layout.judge_file(made(mode, uid), 1000, "x")] == ["unprotected"]


def test_the_budget_formula() -> None:
    assert layout.default_budget(4096, 160, 10**12) == 4096
    assert layout.default_budget(4096, 32 << 30, 24 << 30) == 2 << 30
    assert layout.default_budget(4096, 32 << 30, (4 << 30) + 3) == 1 << 30
