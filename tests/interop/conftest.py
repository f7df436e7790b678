"""The real kt-kernel for the tests that need its compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from upstream_writer import KtKernel, installed


@pytest.fixture(scope="module")
def kt_kernel(request: pytest.FixtureRequest) -> Iterator[KtKernel]:
    """kt-kernel's writer as a process. Its kernels want AVX-512, which no machine of a CI can promise."""
    if not installed():
        pytest.skip("kt-kernel is not installed")
    if "avx512f" not in _flags():
        request.node.add_marker(pytest.mark.hardware)
        pytest.skip("kt-kernel writes INT8 only on processors with AVX-512")
    process = KtKernel()
    yield process
    process.close()


def _flags() -> set[str]:
    with open("/proc/cpuinfo") as info:
        return next((set(line.split()) for line in info if line.startswith("flags")), set())
