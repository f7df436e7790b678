"""Every code a finding can have, and what it means: the chapter "Finding codes" of hwctl-verify(1).

A test collects the codes from the source and compares.
"""

from __future__ import annotations

from collections.abc import Mapping

CODES: Mapping[str, str] = {
    "abandoned": "A staging entry whose producer is proven dead: it will never be finished.",
}
