"""The live page shows the statements of the selected time; statements and wait classes filter the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from browser import scene, synthetic
from browser.test_live_page import NAME, PHONE, accessibility_violations, linked_span, until
from browser.test_live_page_states import HOSTILE, brief
from innoscope.target.digests import digest_id
from scale import long

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Locator, Page

DIGEST = digest_id(synthetic.INSERT_STOCK)[:16]
#: A script that returns the number of wait classes in the chart, and the largest value that it draws.
CHART = """(({ data }) => [data.length - 1, Math.max(...data.slice(1).flat())])(
  uPlot.sync('hour').plots.find((one) => one.root.closest('#threads-chart')))"""
#: A script that replaces the rows of the table of statements.
REPLACE = """async () => {
  const main = document.querySelector('script[type=module]').src;
  const { by, fill } = await import(new URL('dom.js', main));
  fill(by('statements'), 'other rows');
}"""
#: A script that returns the wait classes below the flame graph's root.
FLAME_CLASSES = "d3.select('#flame').datum().children.map((one) => one.data.name)"


@pytest.fixture
def page(browser: Browser, agent: scene.Running) -> Iterator[Page]:
    """Yield the page with the convoy selected; fail if it logged something or sent a request elsewhere."""
    with scene.opened(browser, agent.address) as (one, seen):
        scene.drawn(one)
        scene.drag(one, agent, (synthetic.CONVOY[0] - 15, synthetic.CONVOY[1] + 15))
        one.locator("#statements tbody tr:first-child", has_text="INSERT INTO `stock`").wait_for()
        one.locator("#top li:first-child", has_text="row lock").wait_for()
        yield one
        seen.require_silence(agent.address)


def statement(page: Page) -> Locator:
    return page.locator(f"button[data-digest='{DIGEST}']")


def wait_class(page: Page, wait: str) -> Locator:
    return page.locator(f"button[data-wait='{wait}']")


def classes_in_flame(page: Page) -> list[str]:
    """Return the wait classes below the flame graph's root."""
    return [str(one) for one in scene.evaluated(page, FLAME_CLASSES)]


def test_statements_of_the_selected_time_have_sessions_and_shares(page: Page) -> None:
    cells = page.locator("#statements tbody tr:first-child td").all_inner_texts()
    assert float(cells[0]) == pytest.approx(248, abs=3)
    assert float(cells[1].removesuffix(" %")) == pytest.approx(79, abs=3)
    assert page.inner_text("#statements-about").endswith("average active sessions")
    waits = page.locator("#statements tbody tr:first-child .waits").get_attribute("aria-label") or ""
    assert waits.startswith("row lock 24")
    page.get_by_role("button", name="Last 1 hour").click()
    page.locator("#statements tbody tr:first-child", has_text="INSERT INTO `lines`").wait_for()


def test_statement_filters_chart_and_flame_graph(page: Page, agent: scene.Running, browser: Browser) -> None:
    drawn, most = page.evaluate(CHART)
    assert drawn > 5
    assert most > 300
    before = page.locator("#flame g.frame").count()
    span = linked_span(page)
    statement(page).click()
    until(page, f"({CHART})[0] === 2")
    assert page.evaluate(CHART)[1] == pytest.approx(249, abs=3)
    page.locator("#stacks-about", has_text="snapshots").wait_for()
    assert classes_in_flame(page) == ["row lock", "deadlock search"]
    assert page.locator("#flame g.frame").count() < before
    assert statement(page).get_attribute("aria-pressed") == "true"
    assert page.locator("#threads-table tbody tr").count() == 2
    assert f"digest={DIGEST}" in (page.locator("#raw a").first.get_attribute("href") or "")

    link = page.url.partition("/#")[2]
    with scene.opened(browser, agent.address, f"/#{link}") as (other, _):
        other.locator("#filter", has_text="INSERT INTO `stock`").wait_for()
        until(other, f"({CHART})[0] === 2")
        assert linked_span(other) == span

    statement(page).click()
    until(page, f"({CHART})[0] === {drawn}")
    assert page.locator("#filter").is_hidden()
    assert "digest=" not in page.url


def test_click_on_a_statement_is_not_lost_if_the_table_changes_meanwhile(page: Page) -> None:
    statement(page).hover()
    page.mouse.down()
    page.evaluate(REPLACE)
    page.mouse.up()
    page.locator("#filter", has_text="INSERT INTO `stock`").wait_for()


def test_wait_class_filters_statements_chart_and_flame_graph(page: Page) -> None:
    drawn = page.evaluate(CHART)[0]
    wait_class(page, "page_read").click()
    assert page.evaluate(CHART)[0] == 1
    assert classes_in_flame(page) == ["page read"]
    assert page.locator("#statements tbody tr").count() == 2
    assert "wait=page_read" in page.url
    statement_of_reads = page.locator("button.statement", has_text="FROM `orders`")
    statement_of_reads.click()
    page.locator("#filter", has_text="page read").filter(has_text="FROM `orders`").wait_for()
    page.get_by_role("button", name="Remove the filter page read").click()
    page.locator("#filter", has_text="FROM `orders`").wait_for()
    page.get_by_role("button", name="Clear", exact=True).click()
    until(page, f"({CHART})[0] === {drawn}")
    assert page.locator("#filter").is_hidden()


def test_time_without_samples_is_not_counted(browser: Browser, tmp_path: Path) -> None:
    with (
        synthetic.FakeSensor(tmp_path / "sensor.sock", {NAME: brief(count=6)}) as sensor,
        scene.agent_of(sensor) as agent,
        scene.opened(browser, agent.address) as (page, seen),
    ):
        about = page.locator("#statements-about", has_text=", observed for 60 s of 5 min")
        about.wait_for()
        assert about.inner_text().startswith("4.0 average active sessions")
        start = int(agent.ends) - 1800
        page.evaluate(f"location.hash = 'server={NAME}&time={start}-{start + 60}'")
        page.locator("#statements", has_text="No samples from this time; the first one is from").wait_for()
        seen.require_silence(agent.address)


def test_filters_can_be_used_with_the_keyboard(page: Page) -> None:
    statement(page).focus()
    page.keyboard.press("Enter")
    page.locator("#filter").wait_for()
    until(page, f"document.activeElement.dataset.digest === '{DIGEST}'")
    page.keyboard.press("Enter")
    page.locator("#filter").wait_for(state="hidden")
    wait_class(page, "row_lock").focus()
    page.keyboard.press("Space")
    until(page, f"({FLAME_CLASSES}).join() === 'row lock'")  # once the other stacks have arrived
    until(page, "document.activeElement.dataset.wait === 'row_lock'")


@pytest.mark.parametrize(
    ("scheme", "viewport"),
    [
        ("light", {"width": 1280, "height": 900}),
        pytest.param("dark", PHONE, marks=long("one scheme is in make test")),
    ],
)
def test_filtered_page_is_accessible(
    browser: Browser, agent: scene.Running, scheme: str, viewport: dict[str, int]
) -> None:
    path = f"/#server={NAME}&wait=row_lock&digest={DIGEST}"
    with scene.opened(browser, agent.address, path, color_scheme=scheme, viewport=viewport) as (page, _):
        page.locator("#filter", has_text="INSERT INTO `stock`").wait_for()
        page.wait_for_selector("#probes-table table")
        assert accessibility_violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_hostile_statements_and_links_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    text = f"SELECT `{HOSTILE}` \x1b[31m \u202e" + "x" * 500
    with synthetic.FakeSensor(tmp_path / "sensor.sock", {NAME: brief()}) as sensor:
        sensor.statements = {"row_lock": (text,)}
        path = f"/#server={NAME}&wait={HOSTILE}&digest=%22%3E{HOSTILE}"
        with (
            scene.agent_of(sensor) as agent,
            scene.opened(browser, agent.address, path) as (page, seen),
        ):
            page.locator("#filter", has_text=HOSTILE).wait_for()
            page.get_by_role("button", name="Clear", exact=True).click()
            shown = page.locator("button.statement")
            shown.wait_for()
            assert shown.inner_text().startswith(f"SELECT `{HOSTILE}` \\x1b[31m \\u202exxx")
            assert len(shown.inner_text()) <= 200
            shown.click()
            page.locator("#flame g.frame[name='row lock']").wait_for()
            assert page.locator("img[src=x]").count() == 0
            seen.require_silence(agent.address)
