"""`innoscope probes status` shows the sensor's report, or the remedy if there is no sensor."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.cli.main import main
from innoscope.common.supervision import Supervisor
from innoscope.daemon.protocol.client import SensorDown
from innoscope.daemon.sensor.server import SocketServer
from innoscope.probes.report import ProbeReport

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPORTS = [
    ProbeReport("redo_write", "redo", "attached", ("log_write_up_to",), 1200, 340.0, 0.002, 0.0001, 1.0),
    ProbeReport("mutex_spin", "spin", "off", reason="over the budget of 1.0%", hits=9_000_000),
    ProbeReport("running_out", "free_block", "missing", reason="inlined", instead="memory"),
]


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[str]:
    def handle(request: dict[str, Any]) -> dict[str, Any]:
        assert request["call"] == "probes"
        return {"servers": {"3306": [asdict(report) for report in REPORTS]}}

    path = str(tmp_path / "sensor.sock")
    server = SocketServer(path, handle, Supervisor())
    yield path
    server.close()


def test_table_lists_the_most_frequent_probe_first(socket: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probes", "status", "--sensor-socket", socket]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "server 3306"
    assert [line.split()[0] for line in lines[2:]] == ["mutex_spin", "redo_write", "running_out"]
    assert "over the budget" in lines[2]
    assert "log_write_up_to" in lines[3]
    assert "memory" in lines[4]


def test_json_has_all_fields_of_each_probe(socket: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probes", "status", "--sensor-socket", socket, "--json"]) == 0
    [first, *_] = json.loads(capsys.readouterr().out)["3306"]
    assert first["probe"] == "redo_write"
    assert first["hits"] == 1200


def test_missing_sensor_is_reported_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probes", "status", "--sensor-socket", str(tmp_path / "none.sock")]) == SensorDown.exit_code
    assert "innoscope sensor" in capsys.readouterr().err
