"""Make the screenshots of docs/live-page.md: ``PYTHONPATH=tests .venv/bin/python -m browser.screenshots``."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from browser import scene, synthetic

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FOLDER = Path(__file__).parents[2] / "docs" / "live-page"
DESKTOP = {"width": 1280, "height": 800}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hour = {"orders": list(synthetic.hour(time.time()))}
        with (
            synthetic.FakeSensor(folder / "sensor.sock", hour) as sensor,
            scene.agent_of(sensor) as agent,
            scene.chromium() as browser,
        ):
            sensor.started = time.time() - 2_400  # to show a mark on the time axis
            take(browser, agent, "light", viewport=DESKTOP)
            take(browser, agent, "dark", viewport=DESKTOP, color_scheme="dark")
            take(browser, agent, "phone", viewport={"width": 360, "height": 1500})
            take(browser, agent, "spike", synthetic.CONVOY, viewport={"width": 1280, "height": 1320})


def take(
    browser: Browser, agent: scene.Running, name: str, span: tuple[float, float] | None = None, **options: Any
) -> None:
    """Take one screenshot. If a span is given, in seconds before the end of the hour, select it first."""
    with scene.opened(browser, agent.address, **options) as (page, _):
        scene.drawn(page)
        page.locator("#statements tbody tr").first.wait_for()
        page.locator("#threads-chart .event").first.wait_for()
        if span is not None:
            scene.drag(page, agent, span)
            page.locator("#top li:first-child", has_text="row lock").wait_for()
            _point_at(page)
            page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(300)
        page.screenshot(path=FOLDER / f"{name}.png")
        print(name, (FOLDER / f"{name}.png").stat().st_size // 1024, "KiB", flush=True)


def _point_at(page: Page) -> None:
    """Select a frame with the keyboard, so that its details are shown."""
    page.focus("#flame")
    for _ in range(8):
        page.keyboard.press("ArrowDown")


if __name__ == "__main__":
    main()
