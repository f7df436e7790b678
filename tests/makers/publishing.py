"""Publishing the tensors of plain safetensors files with hwctl's library, as a producer would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hwctl.fs.deadline import Deadline
from hwctl.stores.base import Level
from hwctl.stores.hostweights.build import get_or_build
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.identity_document import read_identity
from hwctl.stores.hostweights.publication import Publication
from hwctl.stores.hostweights.store_root import StoreRoot
from hwctl.stores.hostweights.tensors import TensorSpec
from hwctl.stores.hostweights.verdict import Lookup
from hwctl.stores.hostweights.writer import ArtifactWriter

TORCH = {
    "BOOL": "torch.bool",
    "U8": "torch.uint8",
    "I8": "torch.int8",
    "I16": "torch.int16",
    "I32": "torch.int32",
    "I64": "torch.int64",
    "F16": "torch.float16",
    "BF16": "torch.bfloat16",
    "F32": "torch.float32",
    "F64": "torch.float64",
    "F8_E4M3": "torch.float8_e4m3fn",
}


def identity_of(document: object) -> Identity:
    """An identity from its document, which must be sound."""
    found = read_identity(json.dumps(document).encode())
    assert isinstance(found, Identity), found
    return found


def container(path: Path) -> tuple[dict[str, Any], bytes]:
    """The tensors of a safetensors file by name, and its data section."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return header, data[start:]


def publication(source: Path, identity: Identity) -> Publication:
    """All tensors of the safetensors files in a folder, under the files' own names."""
    return Publication(
        identity,
        tuple(
            TensorSpec(name, TORCH[entry["dtype"]], tuple(entry["shape"]), path.name)
            for path in sorted(source.glob("*.safetensors"))
            for name, entry in container(path)[0].items()
        ),
    )


def producer(
    source: Path, *, ordered: bool = True, before: Callable[[], None] | None = None
) -> Callable[[ArtifactWriter], None]:
    """Writes what ``publication`` promises; ``before`` is called first."""

    def produce(writer: ArtifactWriter) -> None:
        if before is not None:
            before()
        for file_name in writer.file_names:
            header, data = container(source / file_name)
            names = sorted(header, reverse=not ordered)
            with writer.open(file_name, ordered=ordered) as payload:
                for name in names:
                    begin, end = header[name]["data_offsets"]
                    payload.write_tensor(name, data[begin:end])

    return produce


def publish(root: StoreRoot, source: Path, identity: Identity, **options: Any) -> Lookup:
    """Publish a folder of safetensors files; the caller lets the lease go."""
    return get_or_build(
        root,
        publication(source, identity),
        producer(source, **options),
        level=Level.FULL,
        deadline=Deadline.after(30),
    )
