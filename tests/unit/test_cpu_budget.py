"""The agent warns if it uses more CPU time than its budget."""

from __future__ import annotations

import pytest

from innoscope.daemon.agent.config import Own
from innoscope.daemon.agent.cpu_budget import CpuBudget

#: Seconds between checks of the budget.
STEP = 5


class Machine:
    """A simulated agent with a budget of 5 % of a core over 60 s."""

    def __init__(self, settings: Own | None = None) -> None:
        self.now, self.used = 1000.0, 50.0
        self.budget = CpuBudget(settings or Own())
        self.budget.check(self.now, self.used)

    def run(self, seconds: float, share: float) -> None:
        for _ in range(int(seconds / STEP)):
            self.now += STEP
            self.used += STEP * share
            self.budget.check(self.now, self.used)


@pytest.mark.parametrize(
    ("settings", "share"),
    [(Own(), 0), (Own(), 0.0499), (Own(cpu_budget=0), 1)],
    ids=["CPU time before the first check", "usage within the budget", "a budget of zero"],
)
def test_no_warning(settings: Own, share: float, caplog: pytest.LogCaptureFixture) -> None:
    Machine(settings).run(600, share)

    assert not caplog.records


def test_warning_names_the_figures_and_the_next_command(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.run(55, 0.5)
    assert not caplog.records
    machine.run(5, 0.5)

    (warning,) = caplog.records
    assert (warning.message, warning.levelname) == ("CPU budget exceeded", "WARNING")
    fields = vars(warning)
    assert (fields["used"], fields["budget"], fields["remedy"]) == (
        "50.0%",
        "5.0%",
        "sudo innoscope self-profile",
    )


def test_warning_repeats_only_after_a_window_within_the_budget(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.run(600, 0.5)
    assert len(caplog.records) == 1
    machine.run(60, 0)
    machine.run(600, 0.5)

    assert len(caplog.records) == 2


def test_late_check_uses_the_real_interval(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.budget.check(machine.now + 600, machine.used + 20)

    assert not caplog.records
