"""Calls are attributed to the kind of file that the descriptor referred to, even if it is reused later."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.probes.attachment import FILE_OPERATIONS, HISTOGRAM_WORDS
from unit.snapshots import target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READ, SYNC = FILE_OPERATIONS["pread"], FILE_OPERATIONS["fsync"]


class Server:
    """This process in the role of a server. Each file that it opens gets the same descriptor."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.descriptor = os.open(os.devnull, os.O_RDONLY)
        self._open = True
        self._counts: dict[bytes, list[float]] = {}
        self._collector = ProbesCollector(target(pid=os.getpid()), attach_on=lambda *_: None)

    def use(self, name: str, calls: int, operation: int = READ) -> None:
        """Open a file on the descriptor, and add ``calls`` to the counts of the descriptor."""
        path = self._folder / name
        path.touch()
        opened = os.open(path, os.O_RDONLY)
        os.dup2(opened, self.descriptor)
        os.close(opened)
        key = self.descriptor.to_bytes(4, "little") + operation.to_bytes(4, "little")
        words = self._counts.setdefault(key, [0.0] * HISTOGRAM_WORDS)
        words[0] += 1000 * calls
        words[10] += calls

    def close(self) -> None:
        """Close the descriptor if it is open."""
        if self._open:
            os.close(self.descriptor)
        self._open = False

    def collected(self) -> dict[tuple[str, str], int]:
        """Return the number of calls by metric and kind of file, as in a scrape."""
        samples = self._collector._files(self._counts)
        return {(one.metric, *one.labels): one.value.count for one in samples}  # type: ignore[misc,union-attr]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()


def test_earlier_counts_keep_their_kind_if_a_descriptor_is_reused(server: Server) -> None:
    server.use("MYaB3xQ9", 70)
    assert server.collected() == {("read_seconds", "temporary"): 70}
    server.use("t1.ibd", 0)
    assert server.collected()["read_seconds", "temporary"] == 70
    server.use("t1.ibd", 5)
    assert server.collected() == {
        ("read_seconds", "temporary"): 70, ("read_seconds", "other"): 0, ("read_seconds", "data"): 5
    }  # fmt: skip


def test_calls_since_the_last_scrape_are_not_attributed_to_a_new_kind(server: Server) -> None:
    server.use("t1.ibd", 10)
    server.collected()
    server.use("MYaB3xQ9", 30)
    assert server.collected() == {("read_seconds", "data"): 10, ("read_seconds", "other"): 30}


def test_calls_on_a_file_that_is_closed_before_the_scrape_have_no_kind(server: Server) -> None:
    server.use("ib_logfile0", 3, SYNC)
    server.collected()
    server.use("ib_logfile0", 4, SYNC)
    server.close()
    assert server.collected() == {("fsync_seconds", "redo"): 3, ("fsync_seconds", "other"): 4}


def test_both_kinds_of_sync_and_all_descriptors_are_added_up(server: Server) -> None:
    server.use("t1.ibd", 2, SYNC)
    server.use("t2.ibd", 3, FILE_OPERATIONS["fdatasync"])
    server.use("t3.ibd", 4)
    assert server.collected() == {("fsync_seconds", "data"): 5, ("read_seconds", "data"): 4}


def test_sums_do_not_change_if_the_entry_of_a_closed_descriptor_is_deleted(server: Server) -> None:
    server.use("ib_logfile0", 3, SYNC)
    before = server.collected()
    [(key, words)] = server._counts.items()
    server._counts = {b"\xff" * 4 + key[4:]: words}
    assert server.collected() == before | {("fsync_seconds", "other"): 0}
    words[10] += 2
    assert server.collected() == before | {("fsync_seconds", "other"): 2}
