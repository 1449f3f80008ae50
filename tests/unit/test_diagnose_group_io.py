"""The server's share of its I/O limit is computed for both versions of cgroups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.diagnose import group_io
from innoscope.diagnose.host import HostCounters
from innoscope.diagnose.verdict import judge
from unit.evidence import evidence, names

if TYPE_CHECKING:
    from pathlib import Path

V1 = {
    "blkio.throttle.write_iops_device": "8:0 20\n",
    "blkio.throttle.read_bps_device": "8:16 1000\n",
    "blkio.throttle.io_serviced_recursive": "8:0 Read 5\n8:0 Write 40\n8:0 Total 45\nTotal 45\n",
}
V2 = {
    "io.max": "8:0 rbps=max wbps=max riops=max wiops=20\n8:16 rbps=1000 wbps=max riops=max wiops=max\n",
    "io.stat": "8:0 rbytes=1 wbytes=2 rios=5 wios=40 dbytes=0 dios=0\n",
}
BROKEN = {"io.max": "\n8:0\n8:0 wiops\n8:0 wiops=-1\n", "blkio.throttle.read_iops_device": "8:0\nx y z\n"}


def _folder(path: Path, files: dict[str, str]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (path / name).write_text(content)
    return path


@pytest.mark.parametrize("files", [V1, V2], ids=["version 1", "version 2"])
def test_limits_and_totals(tmp_path: Path, files: dict[str, str]) -> None:
    folder = _folder(tmp_path, files)
    assert group_io.limits(folder) == {("8:0", "wiops"): 20, ("8:16", "rbps"): 1000}
    assert group_io.totals(folder)["8:0", "wiops"] == 40


def test_malformed_files_have_no_limits(tmp_path: Path) -> None:
    assert group_io.limits(_folder(tmp_path, BROKEN)) == {}
    assert group_io.limits(tmp_path / "missing") == {}


def test_largest_share_of_a_limit() -> None:
    limit = {("8:0", "wiops"): 20.0, ("8:16", "rbps"): 1000.0}
    before, after = {("8:0", "wiops"): 40.0}, {("8:0", "wiops"): 130.0, ("8:16", "rbps"): 100.0}
    assert group_io.used_ratio(limit, before, after, 5.0) == pytest.approx(0.9)
    assert group_io.used_ratio({}, before, after, 5.0) is None
    assert group_io.used_ratio({("8:0", "riops"): 0.0}, before, after, 5.0) is None


@pytest.mark.parametrize(
    ("line", "folder", "files"),
    [("7:blkio:/db\n", "blkio/db", V1), ("0::/db\n", "db", V2)],
    ids=["version 1", "version 2"],
)
def test_host_value(tmp_path: Path, line: str, folder: str, files: dict[str, str]) -> None:
    _folder(tmp_path / "proc" / "42", {"cgroup": line})
    group = _folder(tmp_path / "groups" / folder, files)
    host = HostCounters(42, tmp_path / "proc", tmp_path / "groups")
    assert host.rates()["group_io_used_ratio"] == 0
    _folder(group, {name: text.replace("40", "90") for name, text in files.items()})
    assert host.rates()["group_io_used_ratio"] > 0


@pytest.mark.parametrize(
    ("threads", "used", "found"),
    [
        ({"page_read": 4}, 0.95, ["io_reads", "io_throttled"]),
        ({"page_read": 4}, 0.3, ["io_reads"]),
        ({"redo_write_wait": 4, "fsync_redo": 1}, 0.95, ["commit_fsync", "io_throttled"]),
        ({"on_cpu": 1}, 0.95, []),
    ],
    ids=["reads", "below the limit", "commits", "nobody waits for storage"],
)
def test_used_up_limit(threads: dict[str, int], used: float, found: list[str]) -> None:
    assert names(judge(evidence(threads, host={"group_io_used_ratio": used}))) == found
