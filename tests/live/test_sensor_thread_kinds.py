"""Test that written pages are attributed to thread kinds only after a snapshot has identified the threads."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from innoscope.common.samples import by_series
from innoscope.daemon.protocol.messages import decode_reply
from innoscope.daemon.sensor.main import Sensor, SensorSettings
from innoscope.daemon.sensor.watch import ProbeSettings
from innoscope.metrics.collectors import waits
from innoscope.sampling.engine import Engine
from scale import few
from servers import Server
from waiting import until
from workloads import Writers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.target.model import Target

#: With these options, the page cleaner writes all dirty pages immediately. Clients write no pages, because
#: the data fits into the buffer pool.
_EAGER: Final = (
    "--innodb-max-dirty-pages-pct=0",
    "--innodb-io-capacity=5000",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flushing-avg-loops=1",  # otherwise 5.6 writes no pages in the first 30 seconds
)
_PAGES: Final = 100
_NAMES: Final = few(
    ["mysql-5.6.24", "mysql-5.7.22", "mysql-9.7", "mariadb-11.4.5"],
    "mysql-5.6.24",
    reason="one server in make test",
)


@contextmanager
def _watched(server: Server) -> Iterator[Sensor]:
    """Run a sensor in this process that watches one server."""
    settings = SensorSettings(only=frozenset({str(server.pid)}), probes=ProbeSettings(frozenset({"flush"})))
    sensor, ended = Sensor(settings), threading.Event()
    thread = threading.Thread(target=sensor.run, args=(ended,))
    thread.start()
    try:
        yield sensor
    finally:
        ended.set()
        thread.join()
        sensor.close()


def _pages(sensor: Sensor) -> dict[str, float]:
    """Return the number of pages written by each kind of thread; empty while no probe is attached."""
    [server] = decode_reply(sensor.collect()).servers
    [probes] = [one for one in server.outcomes if one.collector == "probes"]
    found = by_series(probes.samples)
    return {
        labels[0]: float(str(value))
        for (metric, labels), value in found.items()
        if metric == "flushed_pages_by_thread"
    }


def _if_many(pages: dict[str, float]) -> dict[str, float]:
    return pages if sum(pages.values()) > _PAGES else {}


def _written(server: Server) -> int:
    return int(server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_pages_written'")[0][1])


@pytest.mark.parametrize("name", _NAMES)
def test_no_page_of_the_page_cleaner_is_attributed_to_clients(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delay the first snapshot until the probes could have been attached."""
    may_look = threading.Event()

    def late_engine(target: Target, **options: Any) -> Engine:
        may_look.wait()
        return Engine(target, **options)

    monkeypatch.setattr(waits, "Engine", late_engine)
    with Server(name, options=_EAGER) as server, Writers(server, 4, rate=500), _watched(server) as sensor:
        try:
            until(lambda: sensor.hello()["servers"])
            begin = _written(server)
            until(lambda: _written(server) > begin + 4 * _PAGES)
            early = _pages(sensor)
        finally:
            may_look.set()
        # A later reply may lack the probes, because it does not wait for collectors that are late.
        pages = until(lambda: _if_many(_pages(sensor)))

    assert early == {}
    assert pages["user"] == 0
    assert pages["page_cleaner"] > 0


def test_probes_learn_the_kinds_of_new_threads_without_a_scrape() -> None:
    with Server("mysql-5.6.24") as server, _watched(server) as sensor:
        until(lambda: sensor.hello()["servers"])
        until(lambda: _pages(sensor))
        [slot] = sensor._slots.values()
        assert slot.watch is not None
        assert slot.watch._prober is not None
        attachment = slot.watch._prober.start_once().attachment
        before = attachment.known_kinds
        server.sql("SET GLOBAL event_scheduler = ON")  # starts a thread
        until(lambda: attachment.known_kinds == before + 1)
