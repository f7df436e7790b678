"""What must be there, as the options of verify name it: an identity, an authority, a source, a shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hwctl.cli import units
from hwctl.errors import Usage
from hwctl.stores.base import Family, Match, Store

if TYPE_CHECKING:
    from hwctl.core.verify import Subject
    from hwctl.stores.ktint8.expect import Expectation

_SHAPE = {"numa": "parts", "experts": "experts", "hidden": "hidden", "intermediate": "intermediate"}


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options, as given."""

    identity: Path | None = None
    authority: Path | None = None
    source: Path | None = None
    checkpoint: Path | None = None
    numa: int | None = None
    expect: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        return any((self.identity, self.authority, self.source, self.checkpoint, self.expect))

    def require_sense(self) -> None:
        """Raise Usage for options that contradict each other or cannot be read."""
        given = [
            option
            for option, value in (
                ("--identity", self.identity),
                ("--authority", self.authority),
                ("--source", self.source),
                ("--for", self.checkpoint),
                ("--expect", self.expect),
            )
            if value
        ]
        if len(given) > 1:
            raise Usage(f"{given[0]} and {given[1]} contradict each other")
        if self.numa is not None and self.checkpoint is None:
            raise Usage("--numa belongs to --for; with --expect write numa=N")
        if self.expect:
            _expectation(self.expect)

    def subjects(self, match: Match, store: Store) -> list[Subject]:
        """What is to be checked of the store or entry that a PATH named."""
        from hwctl.core import expected
        from hwctl.core.verify import Subject
        from hwctl.stores import locate

        if self.identity is not None:
            return [expected.of_identity(match, store, expected.read_identity_file(self.identity))]
        if self.authority is not None:
            return [expected.of_authority(match, store, expected.read_authority_file(self.authority))]
        if self.source is not None:
            return list(expected.of_source(match, store, expected.measure(self.source)))
        artifact = locate.entry(store, match)
        if match.family is not Family.KTINT8 or artifact is None:
            raise Usage(f"--for and --expect need PATH to be a kt-int8 tree; {match.path} is not")
        if self.checkpoint is not None:
            wanted = expected.of_checkpoint(self.checkpoint, self.numa)
        else:
            wanted = _expectation(self.expect)
        return [Subject(store, artifact, expected=wanted)]


def _expectation(pairs: Sequence[str]) -> Expectation:
    """``layers=0-3,7`` and its like, each at most once."""
    from hwctl.stores.ktint8.expect import Expectation

    values: dict[str, int] = {}
    layers: tuple[int, ...] | None = None
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in ("layers", *_SHAPE):
            raise Usage(f"--expect {pair}: write KEY=VALUE with {', '.join(('layers', *_SHAPE))}")
        if key == "layers" and layers is None:
            layers = units.spans(value).numbers()
        elif key != "layers" and _SHAPE[key] not in values:
            values[_SHAPE[key]] = units.count(value)
        else:
            raise Usage(f"--expect: {key} stands twice")
    return Expectation(layers=layers, **values)
