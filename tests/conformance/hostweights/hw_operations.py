"""Operations on a prepared store, and identity vectors."""

from __future__ import annotations

import hw_registry
import hw_store
from hw_artifact import canonical

registry = hw_registry.registry
case = registry.case


operation = registry.operation


def deny(store, label: str, reason: str = "checksum_mismatch") -> None:
    path = store.root / "deny" / f"{store.artifacts[label].key}.json"
    path.write_bytes(
        canonical({"schema_version": 1, "stage": "validation", "reason": reason, "message": "m"})
    )
    path.chmod(0o444)


@operation("cleanup", "healthy artifact")
def healthy(store, directory):
    pass


@operation("cleanup", "artifact in use by a reader", hold=(("artifact", "beta", "shared"),))
def leased(store, directory):
    pass


@operation("cleanup", "denied artifact with an older cleanup tombstone")
def with_tombstone(store, directory):
    deny(store, "beta")
    tombstone_of = store.root / "quarantine" / f"{store.artifacts['beta'].key}.cleanup.{'2' * 32}"
    tombstone_of.mkdir()
    (tombstone_of / "part").write_bytes(b"x")
    (tombstone_of / "part").chmod(0o444)
    tombstone_of.chmod(0o555)


@operation("publish", "nothing there yet")
def fresh(store, directory):
    hw_store.force_remove(store.artifacts["beta"].path)


@operation("publish", "denied artifact is replaced")
def over_denied(store, directory):
    deny(store, "beta")


@operation("publish", "artifact with the sticky bit is replaced")
def over_sticky(store, directory):
    store.artifacts["beta"].path.chmod(0o1555)


VECTORS = {
    "empty_object": "{}",
    "key_order": '{"b":1,"a":2,"B":3,"":4,"\u00e9":5,"z":6}',
    "whitespace": ' {\n\t"a" : [ 1 , 2 ] }\r\n',
    "float_short": "[0.1, 1.0, 100.0, -0.0, 2.5e3]",
    "float_switch_to_exponent": "[1e15, 1e16, 1e17, 0.0001, 0.00001]",
    "integer_64_bit": "[9223372036854775807, -9223372036854775808]",
    "integer_above_64_bit": "[9223372036854775808, 18446744073709551616]",
    "raw_cyrillic": '"\u0432\u0435\u0441"',
    "escaped_cyrillic": '"\\u0432\\u0435\\u0441"',
    "emoji": '"\U0001f9e9"',
    "control_characters": '"\\u0000\\b\\t\\n\\f\\r\\u001f\\u007f"',
    "solidus": '"a\\/b/c\\\\d\\"e"',
    "duplicate_key": '{"a":1,"a":2}',
    "literals": "[true,false,null]",
    "nan": '{"a":NaN}',
    "trailing_comma": "[1,]",
    "raw_line_break_in_string": '"a\nb"',
}
# a strict parser may refuse these instead
VECTORS_MAY_FAIL = {"duplicate_key"}
