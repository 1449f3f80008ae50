"""Test that the sensor finds and watches servers while another server's file system does not respond."""

from __future__ import annotations

from pathlib import Path

import pytest

from safety.hanging_files import HangingFiles
from safety.sensing import Sensing, of_pid, outcome
from safety.strangers import Strangers
from servers import Server

#: One less than the number of concurrent identifications per tenant (identification.py).
COUNT = 3


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE")
def test_servers_are_found_while_the_files_of_others_hang(folder: Path) -> None:
    data = folder / "data"
    data.mkdir()
    with Strangers(folder) as strangers, HangingFiles(data) as files:
        hanging = [strangers.start_in(data, f"--datadir={data}".encode(), uid=0) for _ in range(COUNT)]
        files.hang()
        with Sensing("--no-probes") as sensor, Server("mysql-5.6.24") as server:
            reply = sensor.until(server, lambda one: outcome(one, "waits").success)
            assert reply.target.pid == server.pid
            collected = sensor.client.collect()
            assert not [pid for pid in hanging if of_pid(collected, pid)]
            assert "hangs" not in sensor.log, sensor.log
