"""The marks on the live page's time axis: starts and exits of servers, and changes by toggles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.daemon.agent.collect import Scrape, ServerState
from innoscope.daemon.agent.marks import MOST, Marks
from innoscope.metrics import registry
from innoscope.metrics.merge import ExportedSeries

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME = "orders"


def scrape(
    started: float = 100.0,
    toggles: Iterable[tuple[str, str, float]] = (),
    *,
    up: bool = True,
    failing: bool = False,
) -> Scrape:
    declared = registry.default()
    series = [ExportedSeries(declared["mysqld_start_time_seconds"], NAME, (), started)]
    for name, value, since in toggles:
        series += [
            ExportedSeries(declared["toggle_in_force"], NAME, (name, "sql"), 1),
            ExportedSeries(declared["toggle_info"], NAME, (name, value, "ann"), 1),
            ExportedSeries(declared["toggle_since_timestamp_seconds"], NAME, (name,), since),
        ]
    view = ServerState(NAME, "mysql", up, (("toggles", "rights: denied" if failing else None),))
    return Scrape(0.0, tuple(series), (view,))


def marks_of(*scrapes: tuple[float, Scrape], now: float = 1_000.0) -> list[tuple[float, str, str]]:
    marks = Marks(3_600, lambda: now)
    for at, one in scrapes:
        marks.add_scrape(at, one)
    return [(one["at"], one["kind"], one["words"]) for one in marks.of(NAME)]


def test_restart_of_a_server_gives_two_marks() -> None:
    found = marks_of((200, scrape()), (210, scrape(100.9)), (220, scrape(up=False)), (240, scrape(235)))
    assert found == [
        (100, "started", "The server started"),
        (220, "exited", "The server exited"),
        (235, "started", "The server started"),
    ]


def test_toggle_is_marked_when_it_is_set_and_when_it_ends() -> None:
    on = [("read_ahead", "off", 215.5)]
    found = marks_of((200, scrape()), (220, scrape(toggles=on)), (230, scrape(toggles=on)), (240, scrape()))
    assert found[1:] == [
        (215.5, "toggle_set", "Toggle read_ahead = off by ann"),
        (240, "toggle_undone", "Toggle read_ahead is not in force"),
    ]


def test_toggle_whose_value_changes_is_not_undone() -> None:
    found = marks_of(
        (220, scrape(toggles=[("io_capacity", "400", 210)])),
        (240, scrape(toggles=[("io_capacity", "800", 230)])),
    )
    assert [words for _, _, words in found[1:]] == [
        "Toggle io_capacity = 400 by ann", "Toggle io_capacity = 800 by ann",
    ]  # fmt: skip


def test_toggles_that_cannot_be_read_are_not_reported_as_undone() -> None:
    on = scrape(toggles=[("read_ahead", "off", 215)])
    found = marks_of((220, on), (230, scrape(failing=True)), (240, scrape(up=False)), (250, on))
    assert [kind for _, kind, _ in found] == ["started", "toggle_set", "exited"]


def test_marks_are_bounded_by_time_and_number() -> None:
    assert marks_of((200, scrape()), now=100 + 3_601) == []
    restarts = [(float(at), scrape(at)) for at in range(1_000, 3_000, 10)]
    assert len(marks_of(*restarts, now=3_000)) == MOST


def test_server_that_is_absent_for_a_while_keeps_its_marks() -> None:
    gone = Scrape(0.0, (), ())
    found = marks_of((200, scrape()), (210, scrape(up=False)), (220, gone), (240, scrape(235)))
    assert [kind for _, kind, _ in found] == ["started", "exited", "started"]
    now = [300.0]
    marks = Marks(3_600, lambda: now[0])
    marks.add_scrape(200, scrape())
    now[0] = 4_000
    marks.add_scrape(3_900, gone)
    now[0] = 300
    assert marks.of(NAME) == [], "an absent server is forgotten with its last mark"
