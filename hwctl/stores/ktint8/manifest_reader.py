"""Reading a manifest strictly: what its keys must say, taken alone.

Owns types, values, coverage, sizes from the shapes and byte totals. Pure: bytes in, a value and findings out.
How the files of a layer are listed is ``listing``. Unknown keys are allowed at every level and kept when a
manifest is rewritten, as all upstream readers allow them.
"""

from __future__ import annotations

from hwctl.errors import Finding
from hwctl.fs.liveness import Process
from hwctl.stores.ktint8 import layout
from hwctl.stores.ktint8.json_text import BadJson, Outline, outline
from hwctl.stores.ktint8.layers import LayerRecord
from hwctl.stores.ktint8.listing import judge_layer
from hwctl.stores.ktint8.manifest import BACKEND, SCHEMA_UNKNOWN, WEIGHT_FORMAT, Manifest, Parsed, Schema
from hwctl.stores.ktint8.values import WORD_LIMIT, is_count, is_index, is_integer, parse_identity, shown
from hwctl.weights import amx

NEUTRAL_BACKENDS = ("int8", "auto")


def parse(data: bytes, schema: Schema, *, legacy: bool = False) -> Parsed:
    """Judge a manifest's bytes. ``legacy`` reads schema 1 as the persistent reader does: no run, no owner."""
    name = schema.document
    try:
        doc = outline(data, "layers")
    except BadJson as exc:
        return Parsed(None, (Finding("manifest-json", f"the manifest {exc}", name),))
    reader = _Reader(name, doc)
    if not reader.schema(schema):
        return Parsed(None, tuple(reader.findings), doc)
    reader.head(schema, legacy=legacy)
    geometry = reader.geometry()
    if geometry is None:
        return Parsed(None, tuple(reader.findings), doc)
    layers = reader.layers(geometry, schema)
    total = reader.total(layers)
    manifest = None if layers is None else reader.manifest(schema, geometry, layers, total)
    return Parsed(manifest, tuple(reader.findings), doc)


class _Reader:
    """One pass over a manifest's members, collecting findings in the order of the format document."""

    def __init__(self, name: str, doc: Outline) -> None:
        self._name = name
        self._doc = doc
        self._head = doc.members
        self.findings: list[Finding] = []

    def _say(self, message: str, expected: object = None, actual: object = None, code: str = "") -> None:
        self.findings.append(Finding(code or "manifest-value", message, self._name, expected, actual))

    def _equals(self, key: str, wanted: object) -> None:
        value = self._head.get(key)
        if value != wanted or type(value) is not type(wanted):
            self._say(f"{key} must be {wanted!r}, not {shown(value)}", wanted, shown(value))

    def schema(self, wanted: Schema) -> bool:
        value = self._head.get("schema_version")
        if is_integer(value) and value == wanted:
            return True
        known = is_integer(value) and value in tuple(Schema)
        code = "manifest-value" if known or not is_integer(value) else SCHEMA_UNKNOWN
        self._say(
            f"schema_version must be {int(wanted)}, not {shown(value)}", int(wanted), shown(value), code
        )
        return False

    def head(self, schema: Schema, *, legacy: bool) -> None:
        self._equals("state", "ready")
        self._equals("expert_weight_format", WEIGHT_FORMAT)
        self._backend(schema, legacy=legacy)
        if schema is Schema.EPHEMERAL:
            run_id = self._head.get("run_id")
            if not legacy and not (isinstance(run_id, str) and layout.is_run_id(run_id)):
                self._say(f"run_id {shown(run_id)} is no run id")
            self._integer("owner_uid", needed=not legacy)
            self._integer("producer_pid", needed=False)
            self._integer("created_unix_ns", needed=False)
        else:
            self._equals("layout", amx.LAYOUT)
        self._own_key()

    def _own_key(self) -> None:
        """The key ``hwctl`` may hold anything, but what we write there must be right."""
        if "hwctl" not in self._head:
            return
        own = self._head["hwctl"]
        if not isinstance(own, dict):
            self._say(f"hwctl must be an object, not {shown(own)}", code="manifest-hwctl")
            return
        if "producer" in own and isinstance(fault := parse_identity(own["producer"], 0), str):
            self._say(f"hwctl.producer {fault}", code="manifest-hwctl")
        if "source" in own and not isinstance(own["source"], str):
            self._say(f"hwctl.source must be a text, not {shown(own['source'])}", code="manifest-hwctl")

    def _backend(self, schema: Schema, *, legacy: bool) -> None:
        if schema is Schema.EPHEMERAL and not legacy:
            self._equals("backend", BACKEND)
            return
        backend = self._head.get("backend")
        if schema is Schema.PERSISTENT and "backend" not in self._head:
            return
        wanted = NEUTRAL_BACKENDS if schema is Schema.PERSISTENT else (BACKEND.lower(), WEIGHT_FORMAT)
        if not isinstance(backend, str) or backend.lower() not in wanted:
            self._say(
                f"backend must be one of {', '.join(wanted)}, not {shown(backend)}", None, shown(backend)
            )

    def _integer(self, key: str, *, needed: bool) -> None:
        if (needed or key in self._head) and not is_index(self._head.get(key), WORD_LIMIT):
            self._say(f"{key} must be an integer, not {shown(self._head.get(key))}")

    def geometry(self) -> amx.Geometry | None:
        """The counts and sizes, None when one of them is no count or the shape rule is broken."""
        keys = ("hidden_size", "intermediate_size", "expert_num", "threadpool_count")
        values: list[int] = []
        for key in keys:
            value = self._head.get(key)
            if is_count(value):
                values.append(value)
            else:
                self._say(f"{key} must be a positive integer below 2^31, not {shown(value)}")
        if len(values) != len(keys):
            return None
        geometry = amx.Geometry(*values)
        if fault := layout.shape_fault(geometry):
            self._say(fault, code="shape-rule")
            return None
        return geometry

    def layers(self, geometry: amx.Geometry, schema: Schema) -> tuple[LayerRecord, ...] | None:
        spans = self._doc.elements
        if spans is None:
            self._say(f"layers must be a list, not {shown(self._head.get('layers'))}")
            return None
        if not spans:
            self._say("layers lists no layer")
            return None
        records: dict[int, LayerRecord] = {}
        for value in map(self._doc.decode, spans):
            record, findings = judge_layer(
                value, geometry, self._name, digests_needed=schema is Schema.PERSISTENT
            )
            self.findings += findings
            if record is None:
                return None
            if record.index in records:
                self._say(f"layer {record.index} is listed twice")
                return None
            records[record.index] = record
        return tuple(records.values())

    def total(self, layers: tuple[LayerRecord, ...] | None) -> int:
        value = self._head.get("bytes")
        if not is_index(value, WORD_LIMIT) or not value:
            self._say(f"bytes must be a positive integer, not {shown(value)}")
            return 0
        found = sum(layer.size for layer in layers or ())
        if layers is not None and value != found:
            self._say("bytes is not the sum of its layers", found, value, "byte-total")
        return value

    def manifest(
        self, schema: Schema, geometry: amx.Geometry, layers: tuple[LayerRecord, ...], total: int
    ) -> Manifest:
        own = self._head.get("hwctl")
        own = own if isinstance(own, dict) else {}
        pid = self._number("producer_pid")
        producer = None if pid is None else parse_identity(own.get("producer"), pid)
        run_id, source = self._head.get("run_id"), own.get("source")
        return Manifest(
            schema,
            geometry,
            layers,
            total,
            run_id=run_id if isinstance(run_id, str) else None,
            owner_uid=self._number("owner_uid"),
            producer_pid=pid,
            created_ns=self._number("created_unix_ns"),
            producer=producer if isinstance(producer, Process) else None,
            source=source if isinstance(source, str) else None,
        )

    def _number(self, key: str) -> int | None:
        value = self._head.get(key)
        return value if is_index(value, WORD_LIMIT) else None
