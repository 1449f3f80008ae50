"""The live page marks server starts, toggle changes and captured stalls on its time axis."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from browser import scene, synthetic
from browser.test_live_page import NAME, accessibility_violations, linked_span, until
from browser.test_live_page_states import HOSTILE
from innoscope.daemon.agent import config
from innoscope.daemon.agent.collect import Scrape, ServerState
from innoscope.metrics import registry
from innoscope.metrics.merge import ExportedSeries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

RULE = "share.row_lock>0.3"


def toggled(value: str, since: float) -> Scrape:
    """Return a scrape with a toggle in force, whose value and user are hostile."""
    declared = registry.default()
    series = (
        ExportedSeries(declared["toggle_in_force"], NAME, ("read_ahead", "sql"), 1),
        ExportedSeries(declared["toggle_info"], NAME, ("read_ahead", value, HOSTILE), 1),
        ExportedSeries(declared["toggle_since_timestamp_seconds"], NAME, ("read_ahead",), since),
    )
    return Scrape(0.0, series, (ServerState(NAME, "mysql", True, (("toggles", None),)),))


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[scene.Running]:
    """Yield an agent whose server started 40 minutes ago, with a toggle set 20 minutes ago, and a stall."""
    folder = tmp_path_factory.mktemp("page")
    chunks = list(synthetic.hour(time.time()))
    watch = config.Watch((RULE,), for_seconds=0, seconds=1, directory=str(folder / "kept"))
    with synthetic.FakeSensor(folder / "sensor.sock", {NAME: chunks}) as sensor:
        sensor.started = time.time() - 2400
        sensor.convoy = True
        with scene.agent_of(sensor, watch=watch) as one:
            deadline = time.monotonic() + 120
            while not one.agent.incidents.rows():
                assert time.monotonic() < deadline
                time.sleep(0.1)
            one.agent.marks.add_scrape(one.ends - 1200, toggled("off", one.ends - 1200))
            yield one


def test_marks_have_tooltips_and_select_their_time(browser: Browser, agent: scene.Running) -> None:
    with scene.opened(browser, agent.address) as (page, seen):
        scene.drawn(page)
        marks = page.locator("#threads-chart .event")
        toggle = marks.filter(has_text="Toggle read_ahead = off")
        toggle.wait_for()
        assert re.match(
            rf"⚙\d\d:\d\d:\d\d Toggle read_ahead = off by {re.escape(HOSTILE)}\. ",
            toggle.text_content() or "",
        )
        assert marks.filter(has_text="The server started").count() == 1
        stall = marks.filter(has_text="Captured stall: ")
        stall.wait_for()
        assert "threads wait for row locks" in (stall.text_content() or "")

        tip = toggle.locator(".tip")
        assert tip.is_hidden()
        toggle.hover()
        assert tip.is_visible()
        toggle.click()
        page.locator("#stacks-about", has_text=" – ").wait_for()
        start, end = linked_span(page)
        assert start <= agent.ends - 1200 <= end
        assert end - start == pytest.approx(120, abs=20.1)
        assert page.locator("img[src=x]").count() == 0
        seen.require_silence(agent.address)


def test_marks_can_be_used_with_the_keyboard(browser: Browser, agent: scene.Running) -> None:
    with scene.opened(browser, agent.address) as (page, seen):
        scene.drawn(page)
        first = page.locator("#threads-chart .event").first
        first.wait_for()
        page.focus("#threads-chart")
        page.keyboard.press("Tab")
        until(page, "document.activeElement.classList.contains('event')")
        assert first.locator(".tip").is_visible()
        page.keyboard.press("Enter")
        page.locator("#stacks-about", has_text=" – ").wait_for()
        until(page, "document.activeElement.classList.contains('event')")
        assert accessibility_violations(page) == []
        seen.require_silence(agent.address)


def test_restart_of_the_server_is_marked(browser: Browser, tmp_path: Path) -> None:
    chunks = list(synthetic.hour(time.time()))[-60:]
    with (
        synthetic.FakeSensor(tmp_path / "sensor.sock", {NAME: chunks}) as sensor,
        scene.agent_of(sensor) as agent,
        scene.opened(browser, agent.address) as (page, seen),
    ):
        scene.drawn(page)
        assert page.locator("#threads-chart .event").count() == 0
        sensor.started = time.time() - 60
        page.locator("#threads-chart .event", has_text="The server started").wait_for()
        seen.require_silence(agent.address)
