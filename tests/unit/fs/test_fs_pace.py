"""A rate is kept over time, without bursts of more than a tenth of a second."""

from __future__ import annotations

import threading
import time

import pytest

from hwctl.fs.deadline import Deadline
from hwctl.fs.pace import Pacer, Stopped, TimedOut, Watch


def test_no_rate_no_delay() -> None:
    assert Pacer(None).delay(1 << 40) == 0


@pytest.mark.parametrize("rate", [0, -1])
def test_a_rate_is_positive(rate: int) -> None:
    with pytest.raises(ValueError):
        Pacer(rate)


def test_debts_add_up_over_threads() -> None:
    pacer = Pacer(1000)
    threads = [threading.Thread(target=pacer.delay, args=(1000,)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 9.5 < pacer.delay(0) <= 10


def test_idling_earns_little() -> None:
    pacer = Pacer(1000)
    time.sleep(0.3)
    assert 0.85 < pacer.delay(1000) <= 0.95


def test_a_watch_ends_for_any_of_its_reasons() -> None:
    stops = (threading.Event(), threading.Event())
    watch = Watch(None, Deadline.never(), stops)
    watch.check()
    watch.passed(1 << 40)
    stops[1].set()
    with pytest.raises(Stopped):
        watch.check()
    with pytest.raises(TimedOut) as caught:
        Watch(None, Deadline.now(), ()).check()
    assert caught.value.retryable
