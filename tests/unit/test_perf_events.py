"""Innoscope does not use a function of perf events that freezes some hosts."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "agent/native/src"


def test_no_event_is_disabled_by_its_own_overflow() -> None:
    """Reject PERF_EVENT_IOC_REFRESH: with clock events, it freezes Linux 6.16 and 6.17 (snapshot/perf.rs)."""
    calls = re.compile(r"ioctls::REFRESH\b")
    assert not [path for path in SOURCES.rglob("*.rs") if calls.search(path.read_text())]
