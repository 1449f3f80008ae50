"""Fixtures of the browser tests: for each module, a browser and an agent with an hour of synthetic data."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from browser import scene, synthetic
from innoscope.common import slowness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

    from innoscope.sampling.profile_history import Chunk


@pytest.fixture(scope="module", autouse=True)
def _longer_time_limits() -> Iterator[None]:
    """Use the agent's time limits for the slowest hosts, because these tests do not test the limits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slowness, "factor", lambda: 20.0)
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with scene.chromium() as one:
        yield one


@pytest.fixture(scope="module")
def chunks() -> list[Chunk]:
    return list(synthetic.hour(time.time()))


@pytest.fixture(scope="module")
def agent(chunks: list[Chunk], tmp_path_factory: pytest.TempPathFactory) -> Iterator[scene.Running]:
    """Yield an agent that shows the hour of a server named "orders"."""
    folder = tmp_path_factory.mktemp("page")
    with (
        synthetic.FakeSensor(folder / "sensor.sock", {"orders": chunks}) as sensor,
        scene.agent_of(sensor) as one,
    ):
        yield one
