"""Verify over the protocol: what vanished, what cannot be known, and the order of the answers."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import make_pageweights
import pytest

from hwctl.core import verify
from hwctl.errors import IoFailed, Status
from hwctl.stores.base import Artifact, CheckOptions, Level, Report, State
from hwctl.stores.locate import locate, open_store


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    root = make_pageweights.make_store(tmp_path / "pages")
    for number in range(6):
        make_pageweights.make_artifact(root, number)
        make_pageweights.put_lock(root, number)
    return root


def test_what_vanishes_after_the_listing_is_not_damage(pages: Path) -> None:
    store = open_store(locate(pages))
    subjects, _ = verify.whole(store)
    for path in pages.glob(f"{make_pageweights.prefix_of(2)}.*"):
        path.unlink()
    verdicts = list(verify.verify(subjects, Level.SIZE, CheckOptions(jobs=2)))
    assert [verdict.status for verdict in verdicts] == [Status.OK] * 6
    (gone,) = [verdict for verdict in verdicts if verdict.artifact.state is State.VANISHED]
    assert gone.artifact.key == make_pageweights.prefix_of(2)
    named = replace(subjects[0], artifact=gone.artifact, named=True)
    assert verify.judge(named, Level.SIZE, CheckOptions()).status is Status.NOT_FOUND


def test_the_order_is_that_of_the_keys_whatever_the_jobs(pages: Path) -> None:
    store = open_store(locate(pages))
    subjects, _ = verify.whole(store)
    selection = verify.select([*reversed(subjects), subjects[0]], {})
    keys = [subject.artifact.key for subject in selection.subjects]
    assert keys == sorted(keys)
    assert len(keys) == 6
    for jobs in (1, 3, 20):
        verdicts = verify.verify(selection.subjects, Level.SIZE, CheckOptions(jobs=jobs))
        assert [verdict.artifact.key for verdict in verdicts] == keys


class Failing:
    """A store of which one entry cannot be read: a wrapper, since no disk fails to order."""

    def __init__(self, store: object, key: str, error: Exception) -> None:
        self._store, self._key, self._error = store, key, error

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def check(self, artifact: Artifact, level: Level, options: CheckOptions) -> Report:
        if artifact.key == self._key:
            raise self._error
        report = self._store.check(artifact, level, options)  # type: ignore[attr-defined]
        assert isinstance(report, Report)
        return report


@pytest.mark.parametrize("error", [OSError(5, os.strerror(5)), IoFailed("could not read it")])
def test_an_io_error_of_one_entry_leaves_the_others_alone(pages: Path, error: Exception) -> None:
    store = open_store(locate(pages))
    key = make_pageweights.prefix_of(3)
    subjects, _ = verify.whole(Failing(store, key, error))  # type: ignore[arg-type]
    verdicts = list(verify.verify(subjects, Level.SIZE, CheckOptions(jobs=2)))
    assert {verdict.status for verdict in verdicts if verdict.artifact.key != key} == {Status.OK}
    (failed,) = [verdict for verdict in verdicts if verdict.artifact.key == key]
    assert (failed.status, failed.report) == (Status.IO, None)


def test_leaving_early_ends_the_workers(pages: Path) -> None:
    store = open_store(locate(pages))
    subjects, _ = verify.whole(store)
    running = verify.verify(subjects, Level.FULL, CheckOptions(jobs=3))
    next(running)
    running.close()
    for thread in threading.enumerate():
        if thread.name.startswith("verify"):
            thread.join(20)
            assert not thread.is_alive()
