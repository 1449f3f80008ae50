"""A scrape takes at most its time budget, even if it has to wait for another thread."""

from __future__ import annotations

from innoscope.daemon.agent.collect import Gatherer
from innoscope.daemon.agent.servers import Servers
from innoscope.metrics import registry
from unit.fake_sensor import QUIET, Clock, Sensor, reply


def test_a_scrape_that_waited_for_most_of_its_budget_returns_the_last_result() -> None:
    """Let another thread hold the lock, first for six of the ten seconds, and then for four."""
    clock = Clock()
    sensor = Sensor(reply(), reply())
    gatherer = Gatherer(sensor, Servers(QUIET), registry.default(), clock)
    first = gatherer.gather(10.0)

    class Held:
        """A lock that another thread releases after ``seconds``."""

        seconds = 6.0

        def acquire(self, timeout: float) -> bool:
            clock.now += self.seconds
            return self.seconds <= timeout

        def release(self) -> None:
            pass

    gatherer._lock = held = Held()  # type: ignore[assignment]
    assert gatherer.gather(10.0) is first
    held.seconds = 4.0
    second = gatherer.gather(10.0)
    assert second is not first
    assert gatherer._sensor.timeout == 6.0
