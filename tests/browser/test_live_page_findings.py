"""The live page shows the findings and incident files of an agent that has detected a convoy."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from browser import scene, synthetic
from browser.test_live_page import NAME, PHONE, accessibility_violations, until
from innoscope.daemon.agent import config
from innoscope.diagnose.incident.files import load
from scale import long

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

#: A script that replaces the findings with newer ones, as the page does every half minute.
NEWS = f"""async () => {{
  const main = document.querySelector('script[type=module]').src;
  const {{ findings }} = await import(main.replace('main.js', 'findings.js'));
  const news = await (await fetch('/api/findings?server={NAME}')).json();
  news.findings[0].title = '241 threads';
  findings(...['list', 'about'].map((name) => document.getElementById(`findings-${{name}}`)), news); }}"""
RULE = "share.row_lock>0.3"


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[scene.Running]:
    """Yield an agent that has captured the convoy, which is still in progress."""
    folder = tmp_path_factory.mktemp("page")
    watch = config.Watch((RULE,), for_seconds=0, seconds=1, directory=str(folder / "kept"))
    chunks = list(synthetic.hour(time.time()))
    with synthetic.FakeSensor(folder / "sensor.sock", {NAME: chunks}) as sensor:
        sensor.convoy = True
        with scene.agent_of(sensor, watch=watch) as one:
            deadline = time.monotonic() + 120
            while not one.agent.incidents.rows():
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield one


def test_latest_finding_is_shown_with_its_reasons_collapsed(browser: Browser, agent: scene.Running) -> None:
    with scene.opened(browser, agent.address) as (page, seen):
        scene.drawn(page)
        first = page.locator(".findings > li").first
        first.wait_for()
        assert re.match(r"\d+ threads wait for row locks row_lock_convoy, \d\d of 100", first.inner_text())
        assert "of the active threads" in first.inner_text()
        assert re.fullmatch(r"for the last minute · \d+ of \d+ checks", page.inner_text("#findings-about"))
        reason = first.get_by_text("All of them need rows that another transaction")
        assert not reason.is_visible()
        first.get_by_text("Why, and what to do").click()
        assert reason.is_visible()
        assert first.get_by_text("KILL the blocking connection").is_visible()
        page.evaluate(NEWS)
        assert first.inner_text().startswith("241 threads")
        assert reason.is_visible(), "an update must not collapse it"
        seen.require_silence(agent.address)


def test_findings_are_those_of_the_selected_time(browser: Browser, tmp_path: Path) -> None:
    """Select the convoy, which ended 18.5 minutes ago, and then the full redo log."""
    chunks = list(synthetic.hour(time.time()))
    with (
        synthetic.FakeSensor(tmp_path / "sensor.sock", {NAME: chunks}) as sensor,
        scene.agent_of(sensor) as one,
        scene.opened(browser, one.address) as (page, seen),
    ):
        scene.drawn(page)
        titles = page.locator(".findings > li > strong")
        page.locator("#findings-about", has_text="for the last minute").wait_for()
        assert not titles.filter(has_text="wait for row locks").count()
        scene.drag(page, one, (synthetic.CONVOY[0] - 15, synthetic.CONVOY[1] + 15))
        titles.filter(has_text="wait for row locks").wait_for()
        about = page.inner_text("#findings-about")
        shown = re.match(r"for (\d\d:\d\d:\d\d) – \d\d:\d\d:\d\d · (\d+) of (\d+) checks", about)
        assert shown
        assert page.inner_text("#stacks-about").startswith(shown[1])
        assert 15 < int(shown[2]) < int(shown[3])
        page.get_by_text("Not checked", exact=True).click()
        assert "known only for the last minute, so not checked:" in page.inner_text("#findings-list")
        scene.drag(page, one, synthetic.FULL)
        titles.filter(has_text="wait for space in the redo log").wait_for()
        assert not titles.filter(has_text="wait for row locks").count()
        page.get_by_role("button", name="Last 5 min").click()
        page.locator("#findings-about", has_text="for the last minute · ").wait_for()
        seen.require_silence(one.address)


def test_findings_of_another_time_say_so(browser: Browser, agent: scene.Running) -> None:
    """Select a time before the agent's first sample."""
    start = int(agent.ends) - 7200
    with scene.opened(browser, agent.address, f"/#server={NAME}&time={start}-{start + 60}") as (page, seen):
        note = page.locator("#findings-list .note")
        note.wait_for()
        assert "no samples from the selected time" in note.inner_text()
        assert re.match(
            r"for the last minute \(.*\), not for the selected time", page.inner_text("#findings-about")
        )
        seen.require_silence(agent.address)


@long("the quick suite has a smoke test of the page")
def test_captured_stall_can_be_downloaded(browser: Browser, agent: scene.Running, tmp_path: Path) -> None:
    with scene.opened(browser, agent.address) as (page, _):
        row = page.locator("#incidents tbody tr").first
        row.wait_for()
        assert RULE in row.inner_text()
        assert "threads wait for row locks" in row.inner_text()
        with page.expect_download() as pending:
            row.get_by_role("link").click()
        pending.value.save_as(tmp_path / "stall.innoscope")
    capture = load(tmp_path / "stall.innoscope")
    assert (capture.trigger or "").startswith(RULE)
    assert capture.verdict["findings"][0]["name"] == "row_lock_convoy"


@long("the quick suite has a smoke test of the page")
def test_link_of_an_alert_focuses_the_findings(browser: Browser, agent: scene.Running) -> None:
    with scene.opened(browser, agent.address, f"/#server={NAME}&show=findings") as (page, _):
        page.locator(".findings > li").first.wait_for()
        until(page, "document.activeElement.id === 'findings-title'")


@long("the quick suite has a smoke test of the page")
def test_findings_are_accessible_on_a_phone(browser: Browser, agent: scene.Running) -> None:
    with scene.opened(browser, agent.address, color_scheme="dark", viewport=PHONE) as (page, _):
        scene.drawn(page)
        page.locator("#incidents tbody tr").first.wait_for()
        page.get_by_text("Why, and what to do").first.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert accessibility_violations(page) == []
