"""The eleven tensors: the library's layout, the rules, and getting at the bytes of what is offered."""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path

import make_pageweights
import pytest

from hwctl.errors import Damaged, Unsupported
from hwctl.stores.pageweights import content, geometry, offers, writer
from hwctl.stores.pageweights.authority import Authority, read_authority
from hwctl.stores.pageweights.geometry import IDS, LOADABLE, TENSORS, WEIGHTS, TensorShape, torch_name

torch = pytest.importorskip("torch")


def authority(number: int = 7, dtype: str = "float32") -> Authority:
    found = read_authority({**make_pageweights.authority(number), "materializedDtype": dtype})
    assert isinstance(found, Authority)
    return found


def weights(number: int = 7, dtype: str = "float32") -> dict[str, torch.Tensor]:
    kind = getattr(torch, dtype)
    made = {name: (torch.arange(6) % 2).reshape(1, 2, 3).to(kind) for name in WEIGHTS}
    made["gate_t"] = torch.zeros((1, 0, 4), dtype=kind)
    return {IDS: torch.tensor([number]), **made}


def written(offer: offers.Offer, path: Path) -> bytes:
    plan = writer.plan_artifact(offer)
    with path.open("w+b") as file:
        sha256 = writer.write_artifact(file.fileno(), plan, writer.tests_for(plan), lambda _count: None)
    assert writer.digest_of(plan) == sha256
    assert path.stat().st_size == plan.size
    return path.read_bytes()


@pytest.mark.parametrize("code", sorted(LOADABLE))
def test_an_artifact_is_what_the_library_writes(code: str, tmp_path: Path) -> None:
    save = pytest.importorskip("safetensors.torch").save
    made = weights(dtype=torch_name(code))
    assert writer.judge_offer(offers.from_torch(made), authority(dtype=torch_name(code))) == ()
    assert written(offers.from_torch(made), tmp_path / "artifact") == save(made)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_what_the_caches_own_program_cannot_load_is_refused(dtype: str) -> None:
    made = {
        IDS: torch.tensor([7]),
        **{name: torch.zeros((1, 2)).to(getattr(torch, dtype)) for name in WEIGHTS},
    }
    findings = writer.judge_offer(offers.from_torch(made), authority(dtype=dtype))
    assert [finding.code for finding in findings] == ["source-authority"]


def test_a_dtype_no_file_can_hold_is_refused() -> None:
    made = weights() | {"up_t": torch.zeros((1, 2), dtype=torch.complex128)}
    with pytest.raises(Damaged) as damaged:
        offers.from_torch(made)
    assert [finding.code for finding in damaged.value.findings] == ["tensor-authority"]


@pytest.mark.parametrize(
    "bend",
    [
        lambda t: t.requires_grad_(),
        lambda t: t.to("meta"),
        lambda t: t.to_sparse(),
    ],
    ids=["gradient", "elsewhere", "sparse"],
)
def test_tensors_that_are_not_plain_memory_are_refused(bend: object) -> None:
    assert callable(bend)
    made = weights() | {"up_t": bend(torch.zeros(1, 2))}
    with pytest.raises(Damaged) as damaged:
        offers.from_torch(made)
    assert {finding.code for finding in damaged.value.findings} == {"tensor-authority"}


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        (IDS, torch.tensor([8])),
        (IDS, torch.tensor([7], dtype=torch.int32)),
        (IDS, torch.tensor([[7]])),
        (IDS, torch.tensor([7, 7])),
        (IDS, torch.tensor(7)),
        ("up_t", torch.zeros(1, 2, dtype=torch.float64)),
        ("up_t", torch.zeros(2, 2)),
        ("up_t", torch.zeros(0, 2)),
        ("up_t", torch.zeros(())),
    ],
)
def test_the_rules_hold_before_writing(name: str, tensor: torch.Tensor) -> None:
    findings = writer.judge_offer(offers.from_torch(weights() | {name: tensor}), authority())
    assert {finding.code for finding in findings} == {"tensor-authority"}
    assert all(name in finding.message for finding in findings)


def test_exactly_eleven_tensors() -> None:
    made = weights()
    for offered in ({**made, "extra": torch.zeros(1, 1)}, {k: v for k, v in made.items() if k != "up_t"}):
        findings = writer.judge_offer(offers.from_torch(offered), authority())
        assert [finding.code for finding in findings] == ["tensor-set"]


def test_integers_beyond_what_the_documents_hold_are_refused() -> None:
    for change in (
        {"page_id": 2**63},
        {"source_identity": (1, 2, 4096, 3)},
        {"source_identity": (1, 2**64, 4096, 3, 4)},
        {"source_identity": (1, 2, 4096, 3.5, 4)},
        {"source_format_revision": 2**64},
    ):
        bent = dataclasses.replace(authority(), **change)
        codes = {finding.code for finding in writer.judge_offer(offers.from_torch(weights()), bent)}
        assert codes == {"source-authority"}, change


def test_views_are_written_as_what_they_stand_for(tmp_path: Path) -> None:
    base = torch.randn(1, 5, 7)
    made = weights() | {"up_t": base.transpose(1, 2), "down_t": base[:, ::2], "ffn_mode_t": -base}
    plain = {name: tensor.contiguous().clone() for name, tensor in made.items()}
    one = written(offers.from_torch(made), tmp_path / "one")
    assert one == written(offers.from_torch(plain), tmp_path / "two")
    numbers = torch.randn(1, 3, dtype=torch.complex64)
    made = weights(dtype="complex64") | {
        "up_t": numbers.conj(),
        "down_t": numbers.conj().imag.to(torch.complex64),
    }
    plain = {name: tensor.resolve_conj().resolve_neg().clone() for name, tensor in made.items()}
    assert written(offers.from_torch(made), tmp_path / "a") == written(
        offers.from_torch(plain), tmp_path / "b"
    )


def test_a_file_and_memory_give_the_same_artifact(tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch").save_file
    made = weights() | {"up_t": torch.randn(1, 3, 1 << 18)}  # more than one block
    save_file(made, str(tmp_path / "page"), metadata={"by": "somebody"})
    with offers.from_file(tmp_path / "page") as offer:
        assert offers.dtype_of(offer) == "float32"
        one = written(offer, tmp_path / "one")
    assert one == written(offers.from_torch(made), tmp_path / "two")


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "page"
    path.write_bytes(make_pageweights.artifact_bytes(7, 8))
    with pytest.raises(Damaged) as damaged, offers.from_file(path) as offer:
        list(offer["up_t"].blocks(1 << 20))
        path.write_bytes(make_pageweights.artifact_bytes(7, 8))
    assert damaged.value.findings[0].code == "source-changed"
    with pytest.raises(Damaged), offers.from_file(path) as offer:
        path.write_bytes(path.read_bytes()[:-1])
        b"".join(offer["up_t"].blocks(1 << 20))


def test_publishing_floats_needs_torch_and_integers_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = writer.plan_artifact(offers.from_torch(weights()))
    whole = writer.plan_artifact(offers.from_torch(weights(dtype="int8")))
    monkeypatch.setattr(content, "torch_loads", lambda: False)
    assert content.finite_test("F32") is None
    with pytest.raises(Unsupported):
        writer.tests_for(plan)
    assert set(writer.tests_for(whole)) == {"I8"}


def test_geometry_lists_all_eleven_in_torchs_words() -> None:
    shapes = [TensorShape(name, "BF16", (1, 2)) for name in WEIGHTS] + [TensorShape(IDS, "I64", (1,))]
    found = geometry.geometry_of(shapes)
    assert set(found) == set(TENSORS)
    assert found["up_t"] == {"shape": [1, 2], "dtype": "bfloat16"} and found[IDS] == {
        "shape": [1],
        "dtype": "int64",
    }


def test_the_header_has_no_blanks_and_is_padded() -> None:
    header = writer.plan_artifact(offers.from_torch(weights())).header
    length = struct.unpack_from("<Q", header)[0]
    assert length % 8 == 0 and length == len(header) - 8
    assert next(iter(json.loads(header[8:]))) == IDS
