"""What every test may rely on: a skip is visible, and where HWCTL_TESTS_MUST_RUN is set it is a failure.

CI sets that variable: a capability that CI lacks must not pass for a green test. A test that depends on
hardware CI cannot promise (two NUMA nodes, say) carries ``@pytest.mark.hardware``.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

# A runner started with nohup, or in the background of a script, ignores these and hands that on to every
# process a test starts; hwctl would rightly ignore them, too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    must_run = os.environ.get("HWCTL_TESTS_MUST_RUN") and item.get_closest_marker("hardware") is None
    if report.skipped and must_run:
        report.outcome = "failed"
        report.longrepr = f"skipped where every test must run: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module that skips itself as a whole is one, too."""
    report = yield
    if report.skipped and os.environ.get("HWCTL_TESTS_MUST_RUN"):
        report.outcome = "failed"
        report.longrepr = f"skipped where every test must run: {report.longrepr}"
    return report


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder in memory, gone afterwards."""
    folder = Path("/dev/shm") / f"hwctl-test-{secrets.token_hex(6)}"
    folder.mkdir(mode=0o700)
    yield folder
    shutil.rmtree(folder)
