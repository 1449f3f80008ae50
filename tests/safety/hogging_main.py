"""``hogging_main.py agent …``: the real agent with a thread that wastes CPU time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from innoscope.cli.main import run
from innoscope.daemon.agent.main import Agent

if TYPE_CHECKING:
    from collections.abc import Callable


def artificial_hog() -> None:
    """Use CPU time until the process exits."""
    number = 0
    while True:
        number += 1


def hogging(serve: Callable[[Agent], None]) -> Callable[[Agent], None]:
    """Wrap ``Agent.run`` to start the thread after the agent has dropped its privileges."""

    def served(agent: Agent) -> None:
        threading.Thread(target=artificial_hog, daemon=True).start()
        serve(agent)

    return served


if __name__ == "__main__":
    Agent.run = hogging(Agent.run)  # type: ignore[assignment, method-assign]
    run()
