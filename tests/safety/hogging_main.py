"""``hogging_main.py agent …``: the real agent, with a fault in it: a thread that computes for nothing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from innoscope.cli.main import run
from innoscope.daemon.agent.main import Agent

if TYPE_CHECKING:
    from collections.abc import Callable


def artificial_hog() -> None:
    """Compute until the process ends."""
    number = 0
    while True:
        number += 1


def hogging(serve: Callable[[Agent], None]) -> Callable[[Agent], None]:
    """The agent's life, with the hog beside it: after it has given up its rights."""

    def served(agent: Agent) -> None:
        threading.Thread(target=artificial_hog, daemon=True).start()
        serve(agent)

    return served


if __name__ == "__main__":
    Agent.run = hogging(Agent.run)  # type: ignore[assignment, method-assign]
    run()
