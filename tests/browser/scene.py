"""Run a real agent on the data of a fake sensor, and open the agent's page in Chromium."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from playwright.sync_api import sync_playwright

from browser import synthetic
from innoscope.daemon.agent import config
from innoscope.daemon.agent.main import Agent
from innoscope.daemon.http.overload import ExpensiveResponses
from innoscope.metrics import registry
from innoscope.metrics.merge import ExportedSeries
from innoscope.sampling.profile_history import CHUNK_S, SPAN_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from playwright.sync_api import Browser, Page

_PATIENCE_S = 120
_NO_WATCH: Final = config.Watch()
#: Command-line options: no sandbox, because root cannot use it, and no connections except to this host.
_OPTIONS: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--host-resolver-rules=MAP elsewhere.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


@dataclass
class Running:
    """An agent that serves requests."""

    agent: Agent
    address: str
    ends: float  # Unix time at which the synthetic hour ends

    def gather(self) -> None:
        """Make the agent collect again.

        The scrape is repeated until its result is new, because scrapes in quick succession share a result.
        """
        began = time.time()
        while json.loads(self._get("/api/status"))["gathered_at"] <= began:
            self._get("/metrics")

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.address + path, timeout=_PATIENCE_S) as answer:  # noqa: S310
            return bytes(answer.read())


def settings(sensor: synthetic.FakeSensor, address: str, watch: config.Watch) -> config.Config:
    """Return the configuration of an agent with the sensor's servers and without SQL."""
    return config.Config(
        only_named=True,
        web=config.Web(listen_address=address),
        sensor=config.SensorConnection(socket=str(sensor.path), start=False),
        sql=config.Sql(enabled=False),
        own=config.Own(cpu_budget=0),
        history=config.HistorySettings(enabled=False),
        watch=watch,
        server=tuple(config.Server(name, socket=there.socket) for name, there in sensor.targets.items()),
    )


@contextmanager
def agent_of(
    sensor: synthetic.FakeSensor,
    address: str = "127.0.0.1:0",
    *,
    past: bool = True,
    watch: config.Watch = _NO_WATCH,
) -> Iterator[Running]:
    """Yield a running agent that has fetched all chunks; if ``past``, its history has an hour of gauges."""
    sensor.all_sent.clear()
    sensor.all_samples_sent.clear()
    agent = Agent(settings(sensor, address, watch))
    # The browser logs refused requests as errors. On a busy host, requests wait longer for their turn.
    agent.web.expensive = ExpensiveResponses(patience_s=_PATIENCE_S)
    ends = sensor.ends
    if past:
        _remember(agent, sensor.targets, ends)
    thread = threading.Thread(target=agent.run, daemon=True)
    thread.start()
    try:
        assert sensor.all_samples_sent.wait(_PATIENCE_S)
        assert sensor.all_sent.wait(_PATIENCE_S)  # by then, the agent has collected once
        yield Running(agent, f"http://127.0.0.1:{agent.web.port}", ends)
    finally:
        agent.ended.set()
        thread.join()


def _remember(agent: Agent, names: Iterable[str], ends: float) -> None:
    declared = registry.default()
    for step in range(int(SPAN_S / CHUNK_S), 0, -1):
        gauges = synthetic.gauges(step * CHUNK_S)
        series = [
            ExportedSeries(declared[name], server, (), value)
            for server in names
            for name, value in gauges.items()
        ]
        agent.history.add_scrape(ends - step * CHUNK_S, series)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Debian's Chromium in headless mode, yield it, and close it afterwards."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=list(_OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Seen:
    """The console messages of a page, and the URLs that it has requested."""

    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def require_silence(self, address: str) -> None:
        """Assert that the console is empty and that only the agent received requests."""
        assert self.console == []
        assert [url for url in self.requests if not url.startswith((f"{address}/", "blob:", "data:"))] == []


@contextmanager
def opened(browser: Browser, address: str, path: str = "/", **options: Any) -> Iterator[tuple[Page, Seen]]:
    """Open a page in a new browser context; yield the page and what it logs and requests.

    ``options`` are passed to ``new_context``.
    """
    common = {"viewport": {"width": 1280, "height": 900}, "service_workers": "block"}
    with browser.new_context(**common | options) as one:
        one.set_default_timeout(1_000 * _PATIENCE_S)
        page, seen = one.new_page(), Seen()
        page.on("console", lambda message: seen.console.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.console.append(f"error: {error}"))
        page.on("request", lambda request: seen.requests.append(request.url))
        page.goto(address + path)
        yield page, seen


def drawn(page: Page) -> None:
    """Wait until the page has drawn its charts and its flame graph."""
    page.wait_for_selector("#age-chart canvas")
    page.wait_for_selector("#flame g.frame")


def evaluated(page: Page, script: str) -> Any:
    """Evaluate a JavaScript expression in the page, and return its value."""
    return json.loads(page.evaluate(f"JSON.stringify({script})"))


def drag(
    page: Page, agent: Running, before: tuple[float, float], chart: str = "threads", meanwhile: str = "null"
) -> None:
    """Select a time span on a chart by dragging; ``before`` is in seconds before the synthetic hour's end.

    The script ``meanwhile`` is executed before the mouse button is released.
    """
    over = page.locator(f"#{chart}-chart .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    shown = page.evaluate(
        "[uPlot.sync('hour').plots[0].scales.x.min, uPlot.sync('hour').plots[0].scales.x.max]"
    )
    left, right = (
        box["x"] + box["width"] * (agent.ends - seconds - shown[0]) / (shown[1] - shown[0])
        for seconds in before
    )
    page.mouse.move(left, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(right, box["y"] + 25, steps=40)
    page.evaluate(meanwhile)
    page.mouse.up()
