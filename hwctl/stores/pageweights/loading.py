"""Loading a page into private memory, or building it when it is not there: the library's front door.

Owns the single flight: whoever finds a page shares its lock with other readers; whoever finds none takes the
lock alone, looks again, builds and publishes. A hit needs neither the eviction lock nor a listing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hwctl.errors import Damaged
from hwctl.fs.deadline import Deadline
from hwctl.stores.pageweights import offers, roots
from hwctl.stores.pageweights.authority import Authority, unwritable
from hwctl.stores.pageweights.checks import Verdict
from hwctl.stores.pageweights.content import load_for
from hwctl.stores.pageweights.geometry import code_of
from hwctl.stores.pageweights.locking import share_page
from hwctl.stores.pageweights.publication import (
    Publication,
    evicted_after,
    find_page,
    page_lock,
    publish_locked,
    touch,
)
from hwctl.stores.pageweights.reading import Pace
from hwctl.stores.pageweights.roots import Root
from hwctl.stores.pageweights.writer import judge_offer, plan_artifact
from hwctl.weights.dtypes import TORCH_NAMES
from hwctl.weights.safetensors_file import Header
from hwctl.weights.tensor_layout import TensorEntry

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor]
    Builder = Callable[[], Weights]


@dataclass(frozen=True, slots=True)
class Page:
    """A page's tensors in memory of its own, which no other process can change.

    ``data`` is the data section of the artifact; the entries' offsets count from its start.
    """

    entries: tuple[TensorEntry, ...]
    data: memoryview

    def to_torch(self) -> dict[str, torch.Tensor]:
        """All eleven tensors over this very memory, writable, without a copy."""
        return {entry.name: _tensor(entry, self.data) for entry in self.entries}


@dataclass(frozen=True, slots=True)
class Loaded:
    """The weights, and how they came: a Page on a hit, else the builder's own tensors and a Publication."""

    weights: Weights
    publication: Publication | None = None

    @property
    def hit(self) -> bool:
        return self.publication is None


def load(root: Root, authority: Authority, *, wait: Deadline) -> Page | None:
    """The page of an authority, validated in full, or None. Its clock moves, and no lock file is made.

    Raises Damaged, Busy, IoFailed.
    """
    load_for(code_of(authority.dtype))
    held = share_page(root.place, authority.prefix, wait)
    if held is not None:
        with held:
            return _use(root, authority)
    try:
        return _use(root, authority)
    except Damaged:
        # Nobody has ever locked the page, so somebody may be making it at this moment: look once more.
        return _use(root, authority)


def load_or_build(
    path: Path, authority: Authority, builder: Builder, *, wait: Deadline, budget: int | None = None
) -> Loaded:
    """The weights of an authority in the cache at ``path``, which is made 0700 if it is missing.

    ``builder`` is called at most once over all processes and threads that ask at the same time, under the
    page's lock, so that it must not ask for its own authority. The tensors it returns are returned as they
    are: unlike a hit they are the caller's own memory. With a ``budget`` (bytes) pages are evicted after a
    publication.

    Raises as ``publication.publish`` does; an error of the builder passes through and nothing is written.
    """
    with roots.writable(path, create=True) as root:
        page = load(root, authority, wait=wait)
        if page is not None:
            return Loaded(page.to_torch())
        _require_writable(authority)
        roots.require_fit_for_publishing(root)
        with page_lock(root, authority.prefix, wait):
            verdict = find_page(root, authority, Pace(), keep=True)
            if verdict.hit:
                return Loaded(_used(root, verdict, authority).to_torch())
            weights = builder()
            done = _publish(root, authority, weights, verdict, budget)
        return Loaded(weights, evicted_after(root, done, budget, wait))


def _require_writable(authority: Authority) -> None:
    """Before a builder works for nothing."""
    findings = unwritable(authority)
    if findings:
        raise Damaged(findings[0].message, findings)


def _publish(
    root: Root, authority: Authority, weights: Weights, verdict: Verdict, budget: int | None
) -> Publication:
    offer = offers.from_torch(weights)
    findings = judge_offer(offer, authority)
    if findings:
        raise Damaged(findings[0].message, findings)
    return publish_locked(root, authority, plan_artifact(offer), verdict, budget=budget)


def _use(root: Root, authority: Authority) -> Page | None:
    verdict = find_page(root, authority, Pace(), keep=True)
    return _used(root, verdict, authority) if verdict.hit else None


def _used(root: Root, verdict: Verdict, authority: Authority) -> Page:
    touch(root, authority.prefix)
    reading = verdict.reading
    assert reading is not None and reading.data is not None and isinstance(reading.header, Header)  # a hit
    return Page(reading.header.tensors, reading.data)


def _tensor(entry: TensorEntry, data: memoryview) -> torch.Tensor:
    import torch

    dtype: torch.dtype = getattr(torch, TORCH_NAMES[entry.dtype].removeprefix("torch."))
    if entry.nbytes == 0:
        return torch.empty(entry.shape, dtype=dtype)
    count = entry.nbytes // dtype.itemsize
    flat = torch.frombuffer(data, dtype=dtype, count=count, offset=entry.begin)
    # Another writer's order of tensors can leave one off its natural boundary.
    whole = flat if flat.data_ptr() % dtype.itemsize == 0 else flat.clone()
    return whole.reshape(entry.shape)
