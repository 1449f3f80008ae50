"""Test that probes count at least 98 % of the events that the server itself counts."""

from __future__ import annotations

import pytest

from live.probe_selftest import FLOOR, compare
from scale import few
from servers import ADDED, NAMES

#: Servers whose InnoDB functions have no symbols. Of the compared probes, only those on the C library attach.
NAMELESS = {"mariadb-10.5", "mariadb-10.11"}


@pytest.mark.parametrize(
    "name", few((*NAMES, *ADDED), "mysql-5.7.22", reason="docs/probes.md has all servers")
)
def test_probes_count_what_the_server_counts(name: str) -> None:
    results = compare(name)

    assert all(result.counted >= 200 for result in results), "too few events to compare"
    missing = {result.event.name for result in results if result.probed is None}
    assert missing == (
        {"pages written", "read-ahead", "commits", "row-lock waits"} if name in NAMELESS else set()
    )
    assert [result.words for result in results if result.share is not None and result.share < FLOOR] == []
