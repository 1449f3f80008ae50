"""The agent serves stacks by the configured name of the server, and only to trusted users."""

from __future__ import annotations

from typing import Any

import pytest

from innoscope.daemon.agent.stack_history import ProfileStore, moment
from innoscope.daemon.http.roles import Client, Role
from innoscope.daemon.http.server import Request
from innoscope.daemon.protocol.client import Page, ServerProfiles
from innoscope.sampling.model import Frame, Trust
from innoscope.sampling.profile_history import Chunk, ClassifiedStack
from unit.fake_sensor import ALIVE, Clock


@pytest.mark.parametrize(
    ("text", "expected"),
    [("now", 1000.0), ("-1.5m", 910.0), ("-1h", -2600.0), ("12.5", 12.5), ("1970-01-01T00:01:00Z", 60.0),
     ("1970-01-01T00:01:00", 60.0)],
)  # fmt: skip
def test_time_can_be_relative_or_absolute(text: str, expected: float) -> None:
    assert moment(text, 1000.0) == expected


@pytest.mark.parametrize("text", ["", "soon", "-m", "-5", "1.2.3"])
def test_malformed_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        moment(text, 1000.0)


class Profiler:
    """A fake sensor that returns one chunk for each of two servers, at the first call only."""

    def __init__(self, end: float) -> None:
        stack = ClassifiedStack.of("idle", Trust.EXACT, (Frame("poll", "libc.so.6", 1),))
        chunks = [Chunk(end - 10, end, 10, 5.0, {stack: 30})]
        self.chunks = {name: ServerProfiles(ALIVE, chunks) for name in ("3306", "3307")}

    def profiles(self, cursor: Any) -> Page[ServerProfiles]:
        chunks, self.chunks = self.chunks, {}
        return Page(cursor, chunks, more=False)


def get(store: ProfileStore, query: dict[str, str], *, trusted: bool = True) -> tuple[int, bytes]:
    client = Client(Role.STACKS if trusted else Role.METRICS)
    response = store.answer(Request("/api/stacks", query, None, client))  # type: ignore[arg-type]
    return int(response.status), response.body


def test_stacks_are_served_by_configured_name_to_trusted_users() -> None:
    clock = Clock()
    clock.now = 5000.0
    names = {"3306": "orders"}
    store = ProfileStore(Profiler(4990.0), lambda name, _: names.get(name), 3600, clock)
    assert get(store, {})[0] == 503
    store.poll()

    status, body = get(store, {"format": "folded"})
    assert (status, body.split(b" ")[-1]) == (200, b"30\n")
    assert get(store, {"server": "3307"})[0] == 400
    assert get(store, {}, trusted=False)[0] == 403
    clock.now += 3700
    store.poll()
    assert get(store, {})[0] == 503


def test_each_chunk_is_forwarded_once_under_the_configured_name() -> None:
    forwarded: list[tuple[str, int]] = []
    names = {"3306": "orders"}
    store = ProfileStore(
        Profiler(4990.0),
        lambda name, _: names.get(name),
        3600,
        Clock(),
        lambda name, _, chunks: forwarded.append((name, len(chunks))) if chunks else None,
    )
    store.poll()
    store.poll()

    assert forwarded == [("orders", 1)]
