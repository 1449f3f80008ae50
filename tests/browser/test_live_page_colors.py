"""Wait classes have distinguishable and consistent colors; frames that all stacks share are folded."""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

import waiting
from browser import scene
from browser.test_live_page import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from playwright.sync_api import Browser, Page

    from innoscope.sampling.profile_history import Chunk

#: Effects of color vision deficiencies on linear RGB, at a severity of 1.0: Machado, Oliveira and Fernandes,
#: "A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009, doi 10.1109/TVCG.2009.113.
SIMULATIONS: Final[Mapping[str, tuple[tuple[float, float, float], ...]]] = {
    "normal vision": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900),
    ),
}  # fmt: skip
FREQUENT: Final = (
    "on_cpu", "row_lock", "metadata_lock", "mutex_wait", "spin", "page_read", "page_write", "doublewrite",
    "fsync_redo", "redo_write_wait", "redo_space", "group_commit", "flush_wait", "free_page_wait",
    "network_send",
)  # fmt: skip
#: Minimum distance of two colors in CIELAB (CIE76). A distance of 2.3 is just noticeable.
DISTANCE = 12.0
#: The matrix that converts linear sRGB to CIE XYZ (IEC 61966-2-1).
XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
#: The white point D65 in CIE XYZ (IEC 61966-2-1).
WHITE = (0.9505, 1.0, 1.089)
#: A script that sets ``window.notified`` to a promise that is fulfilled when the page uses the color scheme.
NOTIFIED = """(scheme) => { const wanted = matchMedia(`(prefers-color-scheme: ${scheme})`);
  window.notified = wanted.matches || new Promise((resolve) =>
    wanted.addEventListener('change', () => resolve(true), { once: true })); }"""
#: A script that returns the color of each class in ``names`` as "rgb(…)".
COLORS = """async (names) => {
  const main = document.querySelector('script[type=module]').src;
  const { color } = await import(main.replace('main.js', 'colors.js'));
  const box = document.createElement('i'); document.body.append(box);
  const found = names.map((wait) => { box.style.color = color(wait); return getComputedStyle(box).color; });
  box.remove(); return found; }"""


@pytest.fixture
def page(browser: Browser, agent: scene.Running) -> Iterator[Page]:
    with scene.opened(browser, agent.address) as (one, seen):
        scene.drawn(one)
        yield one
        seen.require_silence(agent.address)


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def lab(css: str, simulation: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return a color in CIELAB, as it looks with a color vision deficiency."""
    rgb = [float(one) / 255 for one in re.findall(r"[\d.]+", css)[:3]]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in rgb]
    seen = [min(1.0, max(0.0, _dot(row, linear))) for row in simulation]
    ratios = [_dot(row, seen) / white for row, white in zip(XYZ, WHITE, strict=True)]
    x, y, z = (one ** (1 / 3) if one > 0.008856 else 7.787 * one + 16 / 116 for one in ratios)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _switch(page: Page, scheme: Literal["light", "dark"]) -> None:
    """Switch to light or dark mode, and wait until the browser has notified the page."""
    page.evaluate(NOTIFIED, scheme)
    page.emulate_media(color_scheme=scheme)
    page.evaluate("() => notified")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_frequent_classes_have_distinguishable_colors(page: Page, scheme: Literal["light", "dark"]) -> None:
    _switch(page, scheme)
    colors = dict(zip(FREQUENT, page.evaluate(COLORS, list(FREQUENT)), strict=True))
    too_close = [
        (name, one, other)
        for name, simulation in SIMULATIONS.items()
        for one, other in itertools.combinations(FREQUENT, 2)
        if math.dist(lab(colors[one], simulation), lab(colors[other], simulation)) < DISTANCE
    ]
    assert too_close == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_class_has_the_same_color_in_chart_lists_and_flame_graph(
    page: Page, chunks: list[Chunk], scheme: Literal["light", "dark"]
) -> None:
    _switch(page, scheme)
    (expected,) = page.evaluate(COLORS, ["page_read"])
    until(page, f"getComputedStyle(document.querySelector('[data-wait=page_read] .swatch')).backgroundColor "
                f"=== '{expected}'")  # fmt: skip
    until(page, "getComputedStyle(document.querySelector(\"#flame g.frame[name='page read'] rect\")).fill "
                f"=== '{expected}'")  # fmt: skip
    waits = sorted({stack.wait for chunk in chunks for stack in chunk.counts})
    script = """async (waits) => {
      const main = document.querySelector('script[type=module]').src;
      const { color } = await import(main.replace('main.js', 'colors.js'));
      const plot = uPlot.sync('hour').plots.find((one) => one.root.closest('#threads-chart'));
      const drawn = plot.series.slice(1).map((one) => one.fill(plot, 1));
      return { drawn, colors: waits.map((wait) => [wait, color(wait)]) }; }"""

    def differing() -> dict[str, Any] | None:
        seen: dict[str, Any] = page.evaluate(script, waits)
        return seen if set(seen["drawn"]) - {one for _, one in seen["colors"]} else None

    waiting.until(lambda: not differing(), lambda: (scheme, differing()))


def test_frames_that_all_stacks_share_are_folded(page: Page) -> None:
    folded = page.locator("#flame g.frame[name^='clone3 … ']")
    count = page.locator("#flame g.frame").count()
    assert folded.count() > 3
    assert page.locator("#flame g.frame[name='do_command']").count() == 0
    assert page.locator("#top", has_text="do_command").count() == 1, "the list has all functions"
    page.fill("#find", "do_command")
    assert "threads" in page.inner_text("#found")
    page.fill("#find", "")
    page.focus("#flame")
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert "frames that all stacks share" in page.inner_text("#details")
    page.keyboard.press("Enter")
    page.locator("#flame g.frame[name='do_command']").first.wait_for()
    assert folded.count() == 0
    assert page.is_checked("#shared")
    assert page.locator("#flame g.frame").count() > count
    page.uncheck("#shared")
    folded.first.wait_for()
    folded.first.click()
    page.locator("#flame g.frame[name='do_command']").first.wait_for()


def test_folded_frames_stay_folded_if_one_class_is_selected(page: Page) -> None:
    page.locator("[data-wait='row_lock']").click()
    assert page.locator("#flame g.frame[name^='clone3 … ']").count() == 1
    assert page.locator("#flame g.frame").count() > 5
