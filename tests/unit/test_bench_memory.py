"""The benchmarks of many servers and many threads fail if a daemon exceeds one of their limits."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from bench import __main__ as bench
from bench import crowd, many
from safety.units import Unit

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


@pytest.mark.parametrize("module", [many, crowd])
@pytest.mark.parametrize("daemon", ["sensor", "agent"])
@pytest.mark.parametrize("excess_mb", [0.0, 1.0])
def test_exit_status(
    module: ModuleType,
    daemon: str,
    excess_mb: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = module.__name__.rpartition(".")[2]
    limit_mb = Unit.named(daemon).memory_max / 1e6
    peaks = {"sensor": 90.0, "agent": 90.0} | {daemon: limit_mb + excess_mb}
    record = {"peak_mb": peaks, "snapshots_per_second": [0.998, 1.0], "settled_s": 10.0}
    monkeypatch.setattr(module, "run", lambda *_: record)
    monkeypatch.setattr(module, "report", lambda _: "")
    monkeypatch.setattr(sys, "argv", ["bench", name, "--quick", "--json", str(tmp_path / "values.json")])

    assert bench.main() == (1 if excess_mb else 0)
    says = f"the {daemon} took {limit_mb + 1:.0f} MB, limit {limit_mb:.0f} MB (MemoryMax)"
    assert (says in capsys.readouterr().err) == bool(excess_mb)


@pytest.mark.parametrize(
    ("rates", "settled_s", "says"),
    [
        ([1.0, 0.98], 10.0, "0.990 snapshots per second"),
        ([1.0, 1.0], 1_000.0, "some collectors did not succeed within 900 s"),
    ],
)
def test_missed_snapshots_and_collectors_are_reported(
    rates: list[float], settled_s: float, says: str
) -> None:
    record = {"peak_mb": {"sensor": 90.0}, "snapshots_per_second": rates, "settled_s": settled_s}
    [found] = many.exceeded({"mysql-5.6.24": record})
    assert says in found


def test_limits_of_the_units() -> None:
    assert [Unit.named(daemon).memory_max for daemon in ("sensor", "agent")] == [768 << 20, 384 << 20]
