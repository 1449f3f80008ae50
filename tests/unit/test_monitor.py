"""Values are parsed from the InnoDB monitor's text, recorded on five servers (tests/golden/monitor)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from innoscope.metrics.collectors import monitor, sql_catalog
from innoscope.metrics.collectors.sql_plan import Answers

GOLDEN = Path(__file__).parents[1] / "golden" / "monitor"
SERVERS = sorted(path.stem for path in GOLDEN.glob("*.txt"))

#: Values read manually from the text: made young, not young, pages of the adaptive hash index, pending AIO
#: (reads, writes, change buffer, redo), LSN, flushed up to, last checkpoint, pages flushed up to, change
#: buffer merges, size of the change buffer, history list.
SEEN: dict[str, tuple[int | None, ...]] = {
    "mysql-5.5.9": (0, 0, 0, 0, 0, 0, 0, 1595675, 1595675, 1595675, None, 0, 1, 0),
    "mysql-5.6.24": (0, 0, 0, 0, 0, 0, 0, 1643552, 0, 1643542, 1643542, 0, 1, 5),
}


def values(text: str) -> dict[str, float | None]:
    """Return the values that the catalog's monitor sources find."""
    answers = Answers(monitor=monitor.sections(text))
    return {
        ".".join((entry.metric, *entry.labels)): answers.value(source)
        for entry in sql_catalog.default().entries
        for source in entry.sources
        if source.kind == "monitor"
    }


@pytest.mark.parametrize("server", SERVERS)
def test_sections_and_values_of_each_generation(server: str) -> None:
    text = (GOLDEN / f"{server}.txt").read_text()
    parts = monitor.sections(text)

    assert {"LOG", "TRANSACTIONS", "BUFFER POOL AND MEMORY", "ROW OPERATIONS"} <= parts.keys()
    found = values(text)
    for metric, line in (
        ("redo_written_bytes", r"Log sequence number +(\d+)"),
        ("redo_checkpoint_bytes", r"Last checkpoint at +(\d+)"),
        ("history_list_length", r"History list length (\d+)"),
    ):
        match = re.search(line, text)
        assert match is not None
        assert found[metric] == int(match.group(1)), metric
    flushed = found["redo_flushed_bytes"]
    assert flushed is not None
    assert found["redo_written_bytes"] is not None
    assert flushed <= found["redo_written_bytes"]


def test_five_servers_are_recorded() -> None:
    assert len(SERVERS) == 5


@pytest.mark.parametrize("server", SEEN)
def test_values_match_those_read_by_a_person(server: str) -> None:
    found = values((GOLDEN / f"{server}.txt").read_text())

    assert tuple(found.values()) == SEEN[server]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("---\nLOG\n---\nLog sequence number 2 5\n", (2 << 32) + 5),
        ("---\nNEW IN 10.0\n---\na\n---\nLOG\n---\nb\nLog sequence number     7\nc\n---\nEND\n", 7),
    ],
    ids=["two halves", "unknown sections and lines"],
)
def test_number_is_found(text: str, number: int) -> None:
    assert values(text)["redo_written_bytes"] == number


@pytest.mark.parametrize(
    ("aio", "expected"),
    [
        # 5.6
        (
            "Pending normal aio reads: 7 [0, 4, 3, 0] , aio writes: 12 [12, 0] ,\n"
            " ibuf aio reads: 1, log i/o's: 2, sync i/o's: 5\n",
            (7, 12, 1, 2),
        ),
        # 5.7 and 8.0
        (
            "Pending normal aio reads: [0, 4, 3, 0] , aio writes: [12, 0] ,\n"
            " ibuf aio reads:, log i/o's:, sync i/o's:\n",
            (7, 12, None, None),
        ),
        # innodb_read_io_threads=1
        ("Pending normal aio reads:, aio writes: [1, 2] ,\n", (None, 3, None, None)),
    ],
    ids=["5.6", "5.7", "one read thread"],
)
def test_pending_aio_is_the_sum_of_the_segments(aio: str, expected: tuple[int | None, ...]) -> None:
    found = values(f"--------\nFILE I/O\n--------\n{aio}")
    arrays = ("read", "write", "change_buffer", "redo")
    assert tuple(found[f"aio_pending_requests.{array}"] for array in arrays) == expected


def test_pages_of_all_parts_of_the_hash_index_are_added_up() -> None:
    parts = "".join(f"Hash table size 34679, node heap has {pages} buffer(s)\n" for pages in (0, 3, 1))
    section = f"---\nINSERT BUFFER AND ADAPTIVE HASH INDEX\n---\nIbuf: size 1, 0 merges\n{parts}0.00 hash\n"
    assert values(section)["buffer_pool_owner_pages.hash_index"] == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no sections here",
        "---\nLOG\n---",
        "---\nSOMETHING NEW\n---\nLog sequence number 5\n",
        "---\nLOG\n---\nLog sequence number none\n",
        "---\nLOG\n---\n   Log sequence number 5\n",  # an indented line may belong to a query
    ],
)
def test_missing_value_is_none(text: str) -> None:
    assert set(values(text).values()) == {None}
