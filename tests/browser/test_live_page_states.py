"""If data are missing or a part of the live page fails, the page shows a message and the rest works."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from browser import scene, synthetic
from innoscope.daemon.http.server import ListenAddress
from innoscope.sampling.model import Frame, Trust
from innoscope.sampling.profile_history import CHUNK_S, Chunk, ClassifiedStack
from scale import long

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

HOSTILE = "<img src=x onerror=alert(1)>"


def brief(count: int = 3, function: str = "poll", wait: str = "row_lock") -> list[Chunk]:
    """Return ``count`` consecutive chunks up to the present."""
    stack = ClassifiedStack.of(
        wait, Trust.STALE, (Frame(function, "mysqld", 1), Frame("start_thread", "libc.so.6", 2))
    )
    now = time.time() // CHUNK_S * CHUNK_S
    starts = [now - CHUNK_S * back for back in range(count, 0, -1)]
    return [Chunk(start + 0.1, start + 9.1, 10, 5.0, Counter({stack: 40})) for start in starts]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[synthetic.FakeSensor, scene.Running]]:
    """Yield a fake sensor with few samples of one server, and the agent that uses it."""
    with (
        synthetic.FakeSensor(tmp_path / "sensor.sock", {"orders": brief()}) as sensor,
        scene.agent_of(sensor) as agent,
    ):
        yield sensor, agent


def test_page_has_text_without_javascript(
    browser: Browser, small: tuple[synthetic.FakeSensor, scene.Running]
) -> None:
    sensor, agent = small
    sensor.failing["memory"] = "rights: no capability SYS_PTRACE"
    agent.gather()
    with scene.opened(browser, agent.address, java_script_enabled=False) as (page, _):
        words = page.inner_text(".words")
        for expected in ("Sensor: ok", "orders", "mysql 5.6.24", "no capability SYS_PTRACE", "/api/probes"):
            assert expected in words
        assert page.locator("#live").is_hidden()


@long("the quick suite has a smoke test of the page")
def test_failing_collectors_show_their_reason(
    browser: Browser, small: tuple[synthetic.FakeSensor, scene.Running]
) -> None:
    sensor, agent = small
    sensor.failing["memory"] = f"rights: {HOSTILE}"
    agent.gather()
    with scene.opened(browser, agent.address) as (page, seen):
        page.locator("#collectors", has_text=HOSTILE).wait_for()
        assert page.locator("#collectors .bad").count() == 1
        assert page.locator("img[src=x]").count() == 0
        seen.require_silence(agent.address)


def test_markup_in_names_is_escaped(browser: Browser, tmp_path: Path) -> None:
    with (
        synthetic.FakeSensor(tmp_path / "sensor.sock", {"orders": brief(function=HOSTILE)}) as sensor,
        scene.agent_of(sensor) as agent,
        scene.opened(browser, agent.address) as (page, seen),
    ):
        page.locator("#top", has_text=HOSTILE).wait_for()
        assert page.locator(f"#flame g.frame[name='{HOSTILE}']").count() == 1
        assert page.locator("#top .mark").inner_text().strip() == "[stale]"
        assert page.locator("img[src=x]").count() == 0
        seen.require_silence(agent.address)


def test_missing_sensor_is_reported(
    browser: Browser, small: tuple[synthetic.FakeSensor, scene.Running]
) -> None:
    sensor, agent = small
    sensor.close()
    agent.gather()
    with scene.opened(browser, agent.address) as (page, seen):
        banner = page.get_by_role("alert")
        banner.wait_for()
        assert "No sensor" in banner.inner_text()
        assert "cannot query the sensor" in banner.inner_text()
        assert page.inner_text("#state") == "no sensor"
        assert "the sensor does not answer" in page.inner_text("#collectors")
        page.locator("#flame g.frame[name='row lock']").wait_for()  # earlier samples are still shown
        seen.require_silence(agent.address)


@long("the quick suite has a smoke test of the page")
def test_stacks_are_hidden_from_untrusted_requests(
    browser: Browser, small: tuple[synthetic.FakeSensor, scene.Running]
) -> None:
    """Request the page under another host name, so that the agent does not trust the request."""
    _, agent = small
    address = f"http://elsewhere.test:{agent.agent.web.port}"
    with scene.opened(browser, address) as (page, seen):
        page.locator("#no-stacks", has_text="basic_auth_users").wait_for()
        assert page.locator("#with-stacks, #choice").evaluate_all("all => all.every((one) => one.hidden)")
        assert page.get_by_role("button", name="row lock").is_visible()  # all clients see thread counts
        seen.require_silence(address)


@long("the quick suite has a smoke test of the page")
def test_page_says_that_no_server_runs(browser: Browser, tmp_path: Path) -> None:
    with (
        synthetic.FakeSensor(tmp_path / "sensor.sock", {}) as sensor,
        scene.agent_of(sensor) as agent,
        scene.opened(browser, agent.address) as (page, seen),
    ):
        page.locator("#banners", has_text="No mysqld or mariadbd is running").wait_for()
        assert page.locator("#threads").is_hidden()
        seen.require_silence(agent.address)


@long("the quick suite has a smoke test of the page")
def test_page_says_that_there_are_no_samples_yet(browser: Browser, tmp_path: Path) -> None:
    with (
        synthetic.FakeSensor(tmp_path / "sensor.sock", {"orders": []}) as sensor,
        scene.agent_of(sensor, past=False) as agent,
        scene.opened(browser, agent.address, viewport={"width": 360, "height": 740}) as (page, seen),
    ):
        page.locator("#threads-table", has_text="No stacks yet").wait_for()
        assert "ten seconds" in page.inner_text("#no-stacks")
        assert "27,525 pages" in page.inner_text("#dirty-about")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        seen.require_silence(agent.address)


@long("the quick suite has a smoke test of the page")
def test_idle_threads_of_an_idle_server_can_be_shown(browser: Browser, tmp_path: Path) -> None:
    with (
        synthetic.FakeSensor(tmp_path / "sensor.sock", {"orders": brief(wait="idle")}) as sensor,
        scene.agent_of(sensor) as agent,
        scene.opened(browser, agent.address) as (page, seen),
    ):
        page.locator("#top", has_text="select idle threads").wait_for()
        assert page.locator("#flame").is_hidden()
        page.check("#idle")
        page.locator("#flame g.frame[name='idle']").wait_for()
        page.emulate_media(color_scheme="dark")
        page.uncheck("#idle")
        page.locator("#top", has_text="select idle threads").wait_for()
        seen.require_silence(agent.address)


def test_served_report_runs_in_a_sandbox(
    browser: Browser, small: tuple[synthetic.FakeSensor, scene.Running]
) -> None:
    """Check that the report's scripts have an opaque origin, so that the browser refuses their requests."""
    _, agent = small
    with scene.opened(browser, agent.address, "/api/stacks?format=html") as (page, seen):
        page.fill("#find", "nothing of the kind")
        assert page.inner_text("#found") == "0 threads"
        seen.require_silence(agent.address)
        assert page.evaluate("window.origin") == "null"
        assert page.evaluate("fetch('/metrics').then(() => 'asked', () => 'refused')") == "refused"


@long("the quick suite has a smoke test of the page")
def test_servers_can_be_chosen_from_a_fleet(browser: Browser, tmp_path: Path) -> None:
    names = [f"shop-{number:02}" for number in range(12)]
    with (
        synthetic.FakeSensor(tmp_path / "sensor.sock", {name: brief() for name in names}) as sensor,
        scene.agent_of(sensor) as agent,
        scene.opened(browser, agent.address) as (page, seen),
    ):
        page.locator("#fleet-table tbody tr").nth(11).wait_for()
        page.get_by_role("button", name="shop-07").click()
        page.locator("tr.chosen", has_text="shop-07").wait_for()
        page.locator("#flame g.frame").first.wait_for()
        assert page.input_value("#server") == "shop-07"
        assert "server=shop-07" in (page.locator("#raw a").first.get_attribute("href") or "")
        page.select_option("#server", "shop-03")
        page.locator("tr.chosen", has_text="shop-03").wait_for()
        seen.require_silence(agent.address)


@long("the quick suite has a smoke test of the page")
def test_page_reconnects_to_an_agent_that_restarts(browser: Browser, tmp_path: Path) -> None:
    """Leave the console unchecked: the browser logs the connections that are refused during the restart."""
    with synthetic.FakeSensor(tmp_path / "sensor.sock", {"orders": brief()}) as sensor:
        with scene.agent_of(sensor) as agent:
            context = browser.new_context()
            page = context.new_page()
            page.clock.install()
            page.goto(agent.address)
            page.locator("#flame g.frame").first.wait_for()
            address = ListenAddress.parse(agent.address.removeprefix("http://"))
        page.clock.fast_forward(11_000)
        banner = page.get_by_role("alert")
        banner.wait_for()
        assert "has not responded since" in banner.inner_text()
        assert page.locator("#flame g.frame").first.is_visible()
        with scene.agent_of(sensor, str(address)):
            page.clock.fast_forward(40_000)
            banner.wait_for(state="detached")
            assert page.inner_text("#state") == "sensor: ok"
        context.close()
