"""Use the live page in Chromium as a user would, with an agent that has an hour of 1,000 threads."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

import waiting
from browser import scene, synthetic
from npm import package
from safety.agenting import Running
from safety.sensing import Sensing
from scale import long
from workloads import RowLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page

    from innoscope.sampling.profile_history import Chunk
    from servers import Server

NAME = "orders"
AXE_SHA = "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
AXE = ("axe-core", "4.14.1", AXE_SHA)
PHONE = {"width": 360, "height": 740}
#: Maximum milliseconds until the page is painted, and between two frames; generous, because the machine may
#: be busy. Each is measured several times, and only the best result counts, because the machine may stall.
LIMIT_MS = 5_000
LONGEST_FRAME_MS = 2_000
#: Time spans to select, in seconds before the end of the hour. The last one contains the spike.
DRAGS = tuple((synthetic.CONVOY[0] - more, synthetic.CONVOY[1] + more) for more in (5, 10, 15))
#: A script that makes the first chart taller, and waits until it is redrawn.
RESIZE = """() => { const chart = document.getElementById('threads-chart');
  chart.style.height = `${chart.clientHeight + 20}px`;
  return new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))); }"""
#: A script that stores the times between frames in ``window.frames_ms``.
FRAMES = """() => { window.frames_ms = []; let last = performance.now();
  const next = (now) => { frames_ms.push(now - last); last = now; requestAnimationFrame(next); };
  requestAnimationFrame(next); }"""
#: A script that simulates dragging a finger from left to right over a chart.
TOUCH = """() => { const over = document.querySelector('#threads-chart .u-over');
  const box = over.getBoundingClientRect();
  for (const [kind, share] of [['down', 0.3], ['move', 0.5], ['up', 0.7]])
    over.dispatchEvent(new PointerEvent(`pointer${kind}`, { pointerType: 'touch', bubbles: true,
      clientX: box.left + share * box.width, clientY: box.top + 20 })); }"""
#: A script that returns [[class, contrast of its color with the text on it], …], as WCAG defines contrast.
CONTRASTS = """async () => {
  const main = document.querySelector('script[type=module]').src;
  const { color } = await import(main.replace('main.js', 'colors.js'));
  const box = document.createElement('i'); document.body.append(box);
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05; };
  const of = (css) => { box.style.color = css; return light(getComputedStyle(box).color); };
  const { classes } = await (await fetch('/api/history?server=orders')).json();
  const found = Object.keys(classes).map((wait) => [wait, of(color(wait)) / of('#14171a')]);
  box.remove(); return found; }"""


@pytest.fixture
def page(browser: Browser, agent: scene.Running) -> Iterator[Page]:
    """Yield the drawn page; fail if it logged something or sent a request elsewhere."""
    with scene.opened(browser, agent.address) as (one, seen):
        scene.drawn(one)
        yield one
        seen.require_silence(agent.address)


def until(page: Page, condition: str) -> None:
    """Poll until the script ``condition`` is true: the CSP forbids eval, which wait_for_function needs."""
    deadline = time.monotonic() + 120
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


def accessibility_violations(page: Page) -> list[Any]:
    """Return the rule, the impact and the first element of each violation that axe-core finds."""
    page.evaluate((package(*AXE) / "axe.min.js").read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [(one["id"], one["impact"], one["nodes"][0]["html"][:200]) for one in found]


def is_of_the_past(url: str, agent: scene.Running) -> bool:
    """Return whether a URL requests the stacks of an earlier time, and not those that the page updates."""
    parts = urlsplit(url)
    return parts.path == "/api/flame" and float(parse_qs(parts.query)["to"][0]) < agent.ends - 600


def active_sessions(page: Page) -> float:
    """Return the sum of all statements' average active sessions."""
    return sum(map(float, page.locator("#statements tbody td:first-child").all_inner_texts()))


def linked_span(page: Page) -> tuple[float, float]:
    """Return the time span in the links to the raw formats."""
    found = re.search(r"from=([\d.]+)&to=([\d.]+)", page.locator("#raw a").first.get_attribute("href") or "")
    assert found
    return float(found[1]), float(found[2])


def test_first_paint_is_fast(browser: Browser, agent: scene.Running) -> None:
    browser.new_page().close()  # the measurement must not include the start of the browser
    painted = []
    for _ in range(3):
        with scene.opened(browser, agent.address) as (page, seen):
            scene.drawn(page)
            paint = {
                one["name"]: one["startTime"]
                for one in scene.evaluated(page, "performance.getEntriesByType('paint')")
            }
            painted.append(paint["first-contentful-paint"])
            seen.require_silence(agent.address)
    assert min(painted) < LIMIT_MS


def test_dragging_over_a_spike_shows_exactly_its_stacks(
    page: Page, agent: scene.Running, chunks: list[Chunk]
) -> None:
    before = page.locator("#flame g.frame").count()
    longest = []
    for span in DRAGS:
        page.evaluate(FRAMES)
        with page.expect_response(lambda response: is_of_the_past(response.url, agent)) as pending:
            scene.drag(page, agent, span)
        document = pending.value.json()
        page.locator("#stacks-about", has_text="snapshots").wait_for()
        page.wait_for_timeout(200)
        longest.append(max(page.evaluate("frames_ms")))
    page.locator("#top li:first-child", has_text="row lock").wait_for()
    start, end = linked_span(page)

    inside = [chunk for chunk in chunks if start <= chunk.start and chunk.end <= end]
    expected: Counter[str] = Counter()
    for chunk in inside:
        for stack, count in chunk.counts.items():
            expected[stack.wait] += count
    shown: Counter[str] = Counter()
    for wait, count, *_ in document["stacks"]:
        shown[document["waits"][wait]] += count
    assert shown == expected
    assert document["looks"] == sum(chunk.snapshots for chunk in inside)
    assert (end - start) == pytest.approx(70, abs=10.1)
    assert start % 10 == 0
    assert page.locator("#flame g.frame[name='row lock']").count() == 1
    assert page.locator("#flame g.frame").count() != before
    assert f"· {document['looks']} snapshots" in page.inner_text("#stacks-about")
    assert min(longest) < LONGEST_FRAME_MS


def test_selection_is_not_lost_if_the_chart_is_redrawn_meanwhile(page: Page, agent: scene.Running) -> None:
    with page.expect_response(lambda response: is_of_the_past(response.url, agent)):
        scene.drag(page, agent, (2400, 2300), meanwhile=RESIZE)


@long("the quick suite has a smoke test of the page")
def test_selection_is_shown_in_all_charts_and_in_the_url(
    page: Page, agent: scene.Running, browser: Browser
) -> None:
    scene.drag(page, agent, synthetic.FULL, "age")
    span = linked_span(page)
    widths = page.evaluate("[...document.querySelectorAll('.u-select')].map(one => one.clientWidth)")
    assert len(widths) == 3
    assert min(widths) > 5
    with scene.opened(browser, agent.address, "/" + page.url.partition("/#")[2].join(("#", ""))) as (
        other,
        _,
    ):
        scene.drawn(other)
        assert linked_span(other) == span
    page.get_by_role("button", name="15 min").click()
    assert page.evaluate("[...document.querySelectorAll('.u-select')].map(one => one.clientWidth)") == [
        0,
        0,
        0,
    ]


@long("the quick suite has a smoke test of the page")
def test_keyboard_can_do_what_the_mouse_can(page: Page) -> None:
    page.focus("#threads-chart")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    words = page.inner_text("#cursor")
    assert re.match(r"\d\d:\d\d:\d\d: .*idle 8\d\d", words), words
    for _ in range(5):
        page.keyboard.press("Shift+ArrowLeft")
    page.locator("#stacks-about", has_text="60 snapshots").wait_for()
    start, end = linked_span(page)
    assert end - start == pytest.approx(60, abs=0.01)
    with page.expect_response("**/api/flame?*"):
        page.keyboard.press("Escape")
    assert "last 5 min" in page.inner_text("#stacks-about")

    page.focus("#flame")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.inner_text("#details").startswith("all threads") is False
    name = page.inner_text("#details").partition(":")[0]
    assert page.locator("#flame g.here").count() == 1
    page.keyboard.press("Enter")
    width = "document.querySelector('#flame g.here rect').getBoundingClientRect().width"
    until(page, f"{width} > 0.95 * document.querySelector('#flame').clientWidth")
    page.keyboard.press("Escape")
    until(page, f"{width} < 0.95 * document.querySelector('#flame').clientWidth")
    page.fill("#find", name)
    assert "threads" in page.inner_text("#found")


@long("the quick suite has a smoke test of the page")
def test_idle_threads_are_hidden_until_they_are_selected(page: Page) -> None:
    assert page.locator("#flame g.frame[name='idle']").count() == 0
    page.check("#idle")
    assert page.locator("#flame g.frame[name='idle']").count() == 1


@pytest.mark.parametrize(
    ("scheme", "viewport"),
    [
        ("light", {"width": 1280, "height": 900}),
        pytest.param("dark", PHONE, marks=long("one scheme is in make test")),
    ],
)
def test_axe_finds_no_violations(
    browser: Browser, agent: scene.Running, scheme: str, viewport: dict[str, int]
) -> None:
    with scene.opened(browser, agent.address, color_scheme=scheme, viewport=viewport) as (page, _):
        scene.drawn(page)
        page.wait_for_selector("#probes-table table")
        assert accessibility_violations(page) == []


@long("the quick suite has a smoke test of the page")
def test_text_on_each_class_has_enough_contrast(page: Page) -> None:
    """Check the dark text of the flame graph's frames on every class color, in both color schemes."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found: list[tuple[str, float]] = page.evaluate(CONTRASTS)
        assert len(found) > 30
        assert [(wait, round(ratio, 1)) for wait, ratio in found if ratio < 4.5] == []


@long("the quick suite has a smoke test of the page")
def test_page_fits_a_narrow_screen(browser: Browser, agent: scene.Running) -> None:
    with scene.opened(browser, agent.address, viewport=PHONE, has_touch=True) as (page, seen):
        scene.drawn(page)
        page.wait_for_selector("#probes-table table")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        page.evaluate(TOUCH)
        page.locator("#stacks-about", has_text=":").wait_for()
        page.locator("#top summary").first.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        seen.require_silence(agent.address)


@long("the quick suite has a smoke test of the page")
def test_nothing_moves_with_reduced_motion(browser: Browser, agent: scene.Running) -> None:
    with scene.opened(browser, agent.address, reduced_motion="reduce") as (page, _):
        moving = page.evaluate("[...document.querySelectorAll('*')].filter(one => "
                               "getComputedStyle(one).transitionDuration !== '0s').length")  # fmt: skip
        assert moving == 0


def test_page_shows_a_real_server(browser: Browser, server: Callable[[str], Server]) -> None:
    one = server("mysql-5.6.24")
    with (
        RowLock(one, 6),
        Sensing("--no-probes", only=[one]) as sensing,
        Running(one, sensor=sensing.path, options=["[stacks]", "poll_seconds = 1"]) as agent,
    ):
        deadline = time.monotonic() + 120
        while not json.loads(agent.get("/api/history?server=under+test")[1])["waits"]["at"]:
            assert time.monotonic() < deadline, agent.log
            time.sleep(0.2)
        address = f"http://127.0.0.1:{agent.port}"
        with scene.opened(browser, address) as (page, seen):
            page.get_by_role("button", name="row lock").wait_for()
            page.locator("#flame g.frame[name='row lock']").wait_for()
            page.locator("#dirty-about", has_text="pages").wait_for()
            page.locator("#age-about", has_text="calm").wait_for()
            statement = page.locator("button.statement", has_text="UPDATE")
            statement.wait_for()
            # Six connections update one row. The first snapshots have no statements (docs/statements.md).
            waiting.until(
                lambda: 4 <= active_sessions(page) <= 7, page.locator("#statements").inner_text, every_s=0.2
            )
            statement.click()
            page.locator("#filter", has_text="UPDATE").wait_for()
            page.locator("#flame g.frame[name='row lock']").wait_for()
            assert page.locator("#top", has_text="lock_wait_suspend_thread").count() == 1
            assert page.locator("#flame g.frame[name='[rare stacks]']").count() == 0
            seen.require_silence(address)
