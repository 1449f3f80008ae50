"""The agent warns if it uses more CPU time than its budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.daemon.agent.config import Own
from innoscope.daemon.agent.cpu_budget import CpuBudget

if TYPE_CHECKING:
    import pytest

#: Seconds between two checks.
STEP = 5


class Machine:
    """An agent with a budget of 5 % of a core over 60 s."""

    def __init__(self, settings: Own | None = None) -> None:
        self.now, self.used = 1000.0, 50.0
        self.budget = CpuBudget(settings or Own())
        self.budget.check(self.now, self.used)

    def run(self, seconds: float, share: float) -> None:
        for _ in range(int(seconds / STEP)):
            self.now += STEP
            self.used += STEP * share
            self.budget.check(self.now, self.used)


def test_time_used_before_the_first_check_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    Machine().run(60, 0)

    assert not caplog.records


def test_usage_within_the_budget_gives_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    Machine().run(600, 0.0499)

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


def test_budget_of_zero_switches_the_warning_off(caplog: pytest.LogCaptureFixture) -> None:
    Machine(Own(cpu_budget=0)).run(600, 1)

    assert not caplog.records
