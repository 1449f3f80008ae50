"""Test reading /proc and finding servers with a synthetic /proc."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from innoscope.common.errors import NoRights, NoSuchProcess, NoTarget, NotAServer
from innoscope.target import discover, endpoints
from innoscope.target.container import container_of
from innoscope.target.discover import find_all, find_one, still_same
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from pathlib import Path

NAMESPACES = {"mnt": 1, "pid": 2, "user": 3, "net": 4}
CONTAINER = "0123456789abcdef" * 4
HEADING_TCP = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
)
HEADING_UNIX = "Num       RefCount Protocol Flags    Type St Inode Path\n"


class FakeProc:
    """A synthetic /proc, written to a directory."""

    def __init__(self, root: Path) -> None:
        self.fs = ProcFs(root)
        self.root = root
        self.process("self", "/usr/bin/python3")

    def process(
        self,
        pid: int | str,
        exe: str | None,
        *,
        comm: str = "mysqld",
        state: str = "S",
        start_time: int = 1000,
        arguments: tuple[str, ...] = ("mysqld",),
        cwd: str = "/var/lib/mysql",
        root: str = "/",
        cgroup: str = "0::/system.slice\n",
        unix: tuple[str, ...] = (),
        tcp: tuple[int, ...] = (),
        namespaces: dict[str, int] | None = None,
        tgid: int | None = None,
        uids: str = "0 0 0 0",
        inner: str = "",
    ) -> None:
        folder = self.root / str(pid)
        for name in ("ns", "fd", "net"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        fields = ["1", *["0"] * 15, "17", "0", str(start_time), "0"]
        (folder / "stat").write_text(f"{pid} ({comm}) {state} {' '.join(fields)}\n")
        (folder / "status").write_text(
            f"Name:\t{comm}\nTgid:\t{tgid or pid}\nTracerPid:\t0\nUid:\t{uids}\nNSpid:\t{pid} {inner}\n"
        )
        (folder / "cmdline").write_bytes(os.fsencode("\0".join(arguments)) + b"\0")
        (folder / "cgroup").write_text(cgroup)
        if exe is not None:
            (folder / "exe").symlink_to(exe)
        (folder / "cwd").symlink_to(cwd)
        (folder / "root").symlink_to(root)
        for name, inode in (NAMESPACES | (namespaces or {})).items():
            (folder / "ns" / name).symlink_to(f"{name}:[{inode}]")
        self._listen(folder, unix, tcp)

    def _listen(self, folder: Path, unix: tuple[str, ...], tcp: tuple[int, ...]) -> None:
        lines = "".join(
            f"0000000000000000: 00000002 00000000 00010000 0001 01 {100 + number} {path}\n"
            for number, path in enumerate(unix)
        )
        stranger = "0000000000000000: 00000002 00000000 00010000 0001 01 999 /run/other.sock\n"
        connected = "0000000000000000: 00000003 00000000 00000000 0001 03 998\n"
        (folder / "net" / "unix").write_text(HEADING_UNIX + connected + stranger + lines)
        listeners = "".join(
            f"   {number}: 0100007F:{port:04X} 00000000:0000 0A 0:0 0:0 0 0 0 {200 + number} 1\n"
            for number, port in enumerate(tcp)
        )
        busy = "   9: 0100007F:1000 0100007F:2000 01 00000000:00000000 00:00000000 00000000 0 0 300 1\n"
        (folder / "net" / "tcp").write_text(HEADING_TCP + listeners + busy)
        inodes = [*(100 + n for n in range(len(unix))), *(200 + n for n in range(len(tcp)))]
        for number, inode in enumerate(inodes):
            (folder / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
        (folder / "fd" / "77").symlink_to("/var/lib/mysql/ibdata1")


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def test_stat_is_parsed_with_spaces_and_parentheses_in_the_name(fake: FakeProc) -> None:
    fake.process(7, "/bin/x", comm="my) R 1 (sqld", start_time=4321)
    stat = fake.fs.stat(7)
    assert (stat.comm, stat.state, stat.threads, stat.start_time) == ("my) R 1 (sqld", "S", 17, 4321)


def test_reading_an_ended_process_raises_process_lookup_error(fake: FakeProc) -> None:
    for read in (fake.fs.stat, fake.fs.status, fake.fs.cmdline, fake.fs.exe, fake.fs.socket_inodes):
        with pytest.raises(ProcessLookupError):
            read(4242)


@pytest.mark.parametrize(
    ("exe", "comm", "expected"),
    [
        ("/usr/sbin/mysqld", "mysqld", True),
        ("/usr/sbin/mariadbd", "mariadbd", True),
        ("/usr/sbin/mysqld-debug", "mysqld-debug", True),
        ("/opt/mysql/bin/mysqld (deleted)", "mysqld", True),
        ("/usr/bin/dash", "mysqld_safe", False),
        ("/usr/bin/mysqld_exporter", "mysqld_exporter", False),
        ("/usr/bin/vim", "mysqld", False),
        ("/usr/bin/mysqld-exporter", "mysqld-exporter", False),
    ],
)
def test_a_server_is_recognized_by_its_executable(
    fake: FakeProc, exe: str, comm: str, expected: bool
) -> None:
    fake.process(7, exe, comm=comm)
    assert discover.is_server(fake.fs, 7) is expected


def test_the_thread_name_decides_if_the_executable_is_unreadable(
    fake: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.process(7, "/opt/mysqld", arguments=("/opt/mysqld", "--socket=/s.sock", "--port", "3307"))

    def refuse(_self: ProcFs, _pid: int) -> object:
        raise PermissionError

    for name in ("exe", "root_of", "cwd", "socket_inodes", "namespaces"):
        monkeypatch.setattr(ProcFs, name, refuse)
    (target,) = find_all(fake.fs)
    assert (target.executable, target.socket, target.port) == ("/opt/mysqld", "/s.sock", 3307)
    assert (target.datadir, target.container, target.version) == (None, None, ())


def test_a_server_is_described_from_proc(fake: FakeProc) -> None:
    fake.process(
        7,
        "/opt/mysqld (deleted)",
        arguments=("mysqld", "--port=3306"),
        unix=("/run/mysqld/mysqlx.sock", "/run/mysqld/mysqld.sock"),
        tcp=(33060, 3306),
        start_time=99,
    )
    target = find_one(proc=fake.fs)
    assert (target.pid, target.start_time, target.threads) == (7, 99, 17)
    assert (target.executable, target.deleted) == ("/opt/mysqld", True)
    assert (target.socket, target.port) == ("/run/mysqld/mysqld.sock", 3306)
    assert (target.datadir, target.root, target.container) == ("/var/lib/mysql", "/", None)
    assert (target.flavour, target.version_from) == ("mysql", "unknown")


def test_paths_in_a_chroot_are_those_that_the_server_sees(fake: FakeProc) -> None:
    fake.process(
        7, "/srv/sid/usr/sbin/mysqld", root="/srv/sid", cwd="/srv/sid/var/lib/mysql", unix=("my.sock",)
    )
    target = find_one(7, proc=fake.fs)
    assert target.executable == "/usr/sbin/mysqld"
    assert target.datadir == "/var/lib/mysql"
    assert target.socket == "/var/lib/mysql/my.sock"
    assert target.root == "/srv/sid"


@pytest.mark.parametrize("character", ["x", "é", "\udcff"])
def test_paths_that_are_too_long_are_ignored(
    fake: FakeProc, character: str, caplog: pytest.LogCaptureFixture
) -> None:
    size = len(os.fsencode(character))
    longest = "/" + character * (4095 // size)
    fake.process(7, "/opt/mysqld", arguments=("mysqld", f"--datadir={longest}", "--socket=/s.sock"))
    target = find_one(7, proc=fake.fs)
    assert (target.datadir, target.socket) == (longest, "/s.sock")
    assert not caplog.records

    too_long = f"--datadir={longest}{character}", f"--socket=/{character * 107}"
    fake.process(8, "/opt/mysqld", arguments=("mysqld", *too_long))
    target = find_one(8, proc=fake.fs)
    assert (target.datadir, target.socket) == ("/var/lib/mysql", None)
    ignored = {vars(record)["option"] for record in caplog.records}
    assert ignored == {"--datadir", "--socket"}


def test_a_server_without_listeners_has_no_port(fake: FakeProc) -> None:
    fake.process(7, "/opt/mysqld", arguments=("mysqld", "--skip-networking", "--port=3306"))
    assert find_one(7, proc=fake.fs).port is None


@pytest.mark.parametrize(
    ("ports", "named", "expected"),
    [
        ((33060, 4567, 3310), None, 3310),
        ((3306, 3307), 3307, 3307),
        ((3305, 3306), None, 3306),
        ((33060,), None, None),
    ],
)
def test_the_port_is_that_of_the_classic_protocol(
    fake: FakeProc, ports: tuple[int, ...], named: int | None, expected: int | None
) -> None:
    arguments = ("mysqld",) if named is None else ("mysqld", f"--port={named}")
    fake.process(7, "/opt/mysqld", arguments=arguments, tcp=ports)
    assert endpoints.find(fake.fs, 7, arguments).port == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["mysqld", "--socket=/a"], "/a"),
        (["mysqld", "--socket", "/a"], "/a"),
        (["mysqld", "-S/a"], "/a"),
        (["mysqld", "-S", "/a", "--socket=/b"], "/b"),
        (["mysqld", "--socket"], None),
        (["mysqld"], None),
        ([], None),
    ],
)
def test_options_are_read_in_all_forms(arguments: list[str], expected: str | None) -> None:
    assert endpoints.option(arguments, "socket", "-S") == expected


@pytest.mark.parametrize(
    ("cgroup", "namespaces", "expected"),
    [
        ("0::/system.slice/mysql.service\n", {}, None),
        ("0::/system.slice/mysql.service\n", {"mnt": 10}, "mnt"),
        ("0::/x\n", {"user": 12, "mnt": 10, "pid": 11}, "mnt,pid,user"),
        (f"0::/system.slice/docker-{CONTAINER}.scope\n", {"mnt": 10}, CONTAINER[:12]),
        (f"12:cpu:/docker/{CONTAINER}\n", {"mnt": 10}, CONTAINER[:12]),
        (f"0::/machine.slice/libpod-{CONTAINER}.scope/container\n", {}, CONTAINER[:12]),
        (f"0::/kubepods/burstable/podabc-1/{CONTAINER}\n", {}, CONTAINER[:12]),
        (f"0::/kubepods.slice/cri-containerd-{CONTAINER}.scope\n", {}, CONTAINER[:12]),
    ],
)
def test_containers_are_recognized_by_cgroup_or_namespaces(
    fake: FakeProc, cgroup: str, namespaces: dict[str, int], expected: str | None
) -> None:
    fake.process(7, "/opt/mysqld", cgroup=cgroup, namespaces=namespaces)
    assert container_of(fake.fs, 7) == expected


def test_a_server_in_our_own_container_does_not_count_as_contained(fake: FakeProc) -> None:
    (fake.root / "self" / "cgroup").write_text(f"0::/docker/{CONTAINER}\n")
    fake.process(7, "/opt/mysqld", cgroup=f"0::/docker/{CONTAINER}\n")
    assert container_of(fake.fs, 7) is None


def test_no_server_is_an_error_with_a_remedy(fake: FakeProc) -> None:
    fake.process(7, "/bin/bash", comm="bash")
    with pytest.raises(NoTarget, match="no mysqld or mariadbd is running") as caught:
        find_one(proc=fake.fs)
    assert caught.value.remedy
    assert find_all(fake.fs) == []


def test_several_servers_are_an_error_that_lists_them_with_their_options(fake: FakeProc) -> None:
    fake.process(7, "/opt/mysqld", unix=("/a.sock",), tcp=(3306,))
    fake.process(8, "/opt/mariadbd", unix=("/b.sock",), tcp=(3307,))
    with pytest.raises(NoTarget, match="2 servers are running") as caught:
        find_one(proc=fake.fs)
    remedy = caught.value.remedy or ""
    assert "--pid 7" in remedy
    assert "--pid 8" in remedy
    assert "/b.sock" in remedy
    assert find_one(port=3307, proc=fake.fs).pid == 8
    assert find_one(socket="/a.sock", proc=fake.fs).pid == 7
    with pytest.raises(NoTarget, match="no server listens on port 1234"):
        find_one(port=1234, proc=fake.fs)


def test_a_socket_can_be_named_by_its_path_on_the_host(fake: FakeProc, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "run").mkdir(parents=True)
    (root / "run" / "my.sock").touch()
    fake.process(7, f"{root}/mysqld", root=str(root), unix=("/run/my.sock",))
    fake.process(8, "/opt/mysqld", unix=("/other.sock",))
    assert find_one(socket=str(root / "run" / "my.sock"), proc=fake.fs).pid == 7


def test_another_program_is_refused_and_the_servers_are_listed(fake: FakeProc) -> None:
    fake.process(7, "/bin/bash", comm="bash")
    fake.process(8, "/opt/mysqld")
    with pytest.raises(NotAServer, match=r"process 7 \(bash\)") as caught:
        find_one(7, proc=fake.fs)
    assert caught.value.remedy == "servers on this host: 8"


def test_a_thread_id_is_refused_with_its_process(fake: FakeProc) -> None:
    fake.process(9, "/opt/mysqld", tgid=8)
    with pytest.raises(NotAServer, match="9 is a thread of process 8") as caught:
        find_one(9, proc=fake.fs)
    assert caught.value.remedy == "--pid 8"


@pytest.mark.parametrize(
    ("pid", "error", "words"),
    [
        (5, NoSuchProcess, "process 5 does not exist"),
        (6, NoSuchProcess, "zombie"),
        (7, NotAServer, "kworker"),
    ],
)
def test_missing_processes_zombies_and_kernel_threads_are_refused(
    fake: FakeProc, pid: int, error: type[Exception], words: str
) -> None:
    fake.process(6, None, state="Z")
    fake.process(7, None, comm="kworker/0:1")
    with pytest.raises(error, match=words):
        find_one(pid, proc=fake.fs)
    assert find_all(fake.fs) == []


def test_a_reused_pid_is_recognized_by_its_start_time(fake: FakeProc) -> None:
    fake.process(7, "/opt/mysqld", start_time=1000)
    target = find_one(7, proc=fake.fs)
    assert still_same(target, fake.fs)
    assert not still_same(replace(target, start_time=1001), fake.fs)
    assert not still_same(replace(target, pid=8), fake.fs)


def test_a_server_that_ends_during_the_search_is_left_out(
    fake: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.process(7, "/opt/mysqld")

    def ended(_self: ProcFs, pid: int) -> list[str]:
        raise ProcessLookupError(pid)

    monkeypatch.setattr(ProcFs, "cmdline", ended)
    assert find_all(fake.fs) == []


def test_a_server_of_another_user_needs_rights(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.process(7, "/opt/mysqld", arguments=("/opt/mysqld",))

    def refuse(_self: ProcFs, _pid: int) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ProcFs, "exe", refuse)
    with pytest.raises(NoRights, match="cannot inspect process 7") as caught:
        find_one(proc=fake.fs)
    assert "root" in (caught.value.remedy or "")
    assert find_one(7, proc=fake.fs, readable=False).executable == "/opt/mysqld"
