"""Compare the commands of this tree with those of another one: ``python -m bench.versions OTHER/innoscope``.

The other tree's commands run in the windows before and after each arm. The control arm also runs the other
tree's command, so that its change is the noise of this machine. The server has 1,000 idle connections.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.command import measured
from bench.scene import crowded, say
from bench.tables import interval, percent, table
from bench.tools import ours
from bench.trials import CONTROL, Trial, Window, alternate, judge

if TYPE_CHECKING:
    from collections.abc import Callable

_THIS: Final = "this tree"
_COMMANDS: Final = (
    ("--help",),
    ("stacks", "--pid", "{pid}"),
    ("diagnose", "--pid", "{pid}", "--seconds", "1"),
)
#: Without bytecode, each run would compile all modules. The first run writes it.
_ENVIRONMENT: Final = {"LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": ""}
#: Reported metrics, with their titles.
_METRICS: Final = {
    "cpu_s": "CPU s",
    "wall_s": "wall s",
    "rss_mb": "RSS MB",
    "anon_mb": "RSS MB without mapped files",
}
_HEADER: Final = ("command", "metric", "other tree", "this tree", "change (95 % interval)",
                  "control (95 % interval)", "verdict")  # fmt: skip


def main() -> None:
    """Run the benchmark and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "other", type=Path, help="the command of the other tree, for example .venv/bin/innoscope"
    )
    parser.add_argument("--server", default="mysql-5.6.24")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    rows = []
    with crowded(options.server, options.connections, mixed=False) as server:
        for command in _COMMANDS:
            arguments = [word.replace("{pid}", str(server.pid)) for word in command]
            window = _window(options.other, arguments)
            window(_THIS)  # fills the caches
            window(CONTROL)
            say(f"innoscope {' '.join(command)}")
            trials = alternate((CONTROL, _THIS), options.rounds, window, lambda _: None)
            rows += [_row(command[0], trials, metric) for metric in _METRICS]
    print(table(_HEADER, rows))


def _window(other: Path, arguments: list[str]) -> Callable[[str], Window]:
    commands = {CONTROL: str(other), _THIS: ours().command[0]}

    def run(arm: str) -> Window:
        cost = measured([commands[arm], *arguments], _ENVIRONMENT)
        return {metric: getattr(cost, metric) for metric in _METRICS}

    return run


def _row(command: str, trials: list[Trial], metric: str) -> list[str]:
    own, control = judge(trials, _THIS, metric), judge(trials, CONTROL, metric)
    return [
        command, _METRICS[metric], f"{own.empty:.3f}", f"{own.value:.3f}",
        f"{percent(own.change)} {interval(*own.change_interval)}",
        f"{percent(control.change)} {interval(*control.change_interval)}", own.words,
    ]  # fmt: skip


if __name__ == "__main__":
    main()
