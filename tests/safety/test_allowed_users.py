"""Test that processes that merely have a server's name are not read or watched, and delay no real server."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.common.errors import BadFile, NoTarget
from innoscope.target import allowed_users
from innoscope.target.discover import find_one, scan
from innoscope.target.proc import ProcFs
from safety.agenting import SCRAPE_S, Running
from safety.command import innoscope
from safety.privileges import NOBODY
from safety.sensing import Sensing, of_pid
from safety.stopwatch import undisturbed
from safety.strangers import UID, Strangers
from scale import count, long
from servers import Server
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from safety.agenting import Scrape

STRANGERS = 300
#: The strangers' options: ports from FIRST_PORT on, the port of those that crash, and an invalid port.
FIRST_PORT, CRASHING_PORT = 20_000, 3999
UNPRINTABLE_PORT = b"\xff\x1b[2J"
SCRAPES = count(quick=20, full=100)
SENSOR_BYTES = 90 << 20
#: A user other than the owner of the crowd.
OTHER_UID = UID + 1
PLACES = 4
PATIENCE_S = 60
PACKAGED_RULE = Path(__file__).parents[2] / "packaging" / "servers.toml"
_COLLECTORS = ("process", "waits", "memory", "probes")
#: Labels with numbers of the real server, or of Innoscope.
_OWN_NUMBERS = ("build_id", "le", "version")


@pytest.fixture
def strangers(folder: Path) -> Iterator[Strangers]:
    with Strangers(folder) as made:
        yield made


@pytest.mark.usefixtures("no_other_server")
def test_a_crowd_of_strangers_delays_no_scrape(strangers: Strangers) -> None:
    """Use the packaged rule of which users' processes are servers."""
    ended, foreign = threading.Event(), set[int]()
    packaged = {allowed_users.VARIABLE: str(PACKAGED_RULE)}

    def crash_loop(cwd: Path) -> None:
        """Repeatedly start and end a stranger and two of root's processes, one in the data directory."""
        while not ended.wait(0.2):
            for uid, place in ((UID, None), (0, None), (0, cwd)):
                options = (b"--datadir=%s" % bytes(cwd), b"--port=%d" % CRASHING_PORT)
                pid = strangers.start(*options, uid=uid, cwd=place)
                foreign.add(pid)
                ended.wait(0.1)
                strangers.end(pid)

    with ExitStack() as stack:
        server = stack.enter_context(Server("mysql-5.6.24"))
        foreign |= {strangers.start(b"--port=%d" % (FIRST_PORT + n)) for n in range(STRANGERS - 1)}
        foreign.add(strangers.start(b"--port=" + UNPRINTABLE_PORT))
        data = server.folder.data
        foreign.add(strangers.start(b"--datadir=%s" % bytes(data), uid=0, cwd=data))
        sensor = stack.enter_context(Sensing(environment=packaged))
        agent = stack.enter_context(Running(server, sensor=sensor.path, environment=packaged))
        crashing = threading.Thread(target=crash_loop, args=(data,))
        crashing.start()
        stack.callback(crashing.join)
        stack.callback(ended.set)
        agent.until(lambda found: all(found.why(name) is None for name in _COLLECTORS))
        took = []
        for _ in range(SCRAPES):
            scrape = undisturbed(agent.scrape)
            assert scrape.value("mysqld_up") == 1
            for name in _COLLECTORS:
                assert scrape.value("collector_success", collector=name) == 1, (name, scrape.why(name))
            assert not _naming(scrape, strangers, foreign)
            took.append(scrape.seconds)
            ended.wait(0.3)
        reply = sensor.client.collect()
        assert of_pid(reply, server.pid) is not None
        assert not {one.target.pid for one in reply.servers} & foreign
        assert not [one.name for one in reply.servers if one.name.startswith("pid ") or "3999" in one.name]
        log = sensor.log
    p99 = sorted(took)[int(len(took) * 0.99) - 1]
    assert p99 < SCRAPE_S
    assert reply.rss_bytes < SENSOR_BYTES
    assert "Traceback" not in log
    assert log.count(f'owner="uid {UID}"') == 1, "not logged once"
    assert "uses the same data directory" in log


def _naming(scrape: Scrape, strangers: Strangers, pids: set[int]) -> list[str]:
    """Return the labels that contain a stranger's pid, port, user or directory.

    ``scrape.values`` itself checks that the label ``server`` of all series is that of the real server.
    """
    numbers = {*pids, UID, CRASHING_PORT, *range(FIRST_PORT, FIRST_PORT + STRANGERS)}
    texts = (str(strangers.executable.parent), UNPRINTABLE_PORT[-3:].decode())
    labels = {label for _, labels in scrape.values for label in labels}
    return [
        value
        for name, value in sorted(labels)
        if name not in _OWN_NUMBERS
        and (numbers & set(map(int, re.findall("[0-9]+", value))) or any(text in value for text in texts))
    ]


def test_process_that_came_first_does_not_hide_the_server_on_its_data_directory(strangers: Strangers) -> None:
    with Server("mysql-5.6.24") as server:
        data = server.folder.data
        server.stop()
        first = strangers.start(b"--datadir=%s" % bytes(data), uid=0, cwd=data)
        with Sensing("--no-probes") as sensor:
            until(lambda: of_pid(sensor.client.collect(), first))
            server.start()
            until(lambda: of_pid(sensor.client.collect(), server.pid))
            assert of_pid(sensor.client.collect(), first) is None


@long("the crowd of strangers is in make test")
def test_a_crowd_of_one_owner_leaves_places_to_others(strangers: Strangers, folder: Path) -> None:
    """Allow both users, so that the sensor accepts all their processes as servers.

    The processes of one user start first and exceed ``max_servers``. The server of the other user must still
    be watched.
    """
    rule = folder / "places.toml"
    rule.write_text(f"users = ['{UID}', '{OTHER_UID}']\nmax_servers = {PLACES}\n")
    rule.chmod(0o644)

    def home(name: str, uid: int) -> Path:
        place = folder / name
        place.mkdir()
        os.chown(place, uid, uid)
        return place

    def watched(sensor: Sensing) -> set[int]:
        return {one.target.pid for one in sensor.client.collect().servers if one.target.pid in running}

    def until_watched(holds: Callable[[set[int]], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds(found := watched(sensor)):
            assert time.monotonic() < deadline, (found, sensor.log)
            time.sleep(0.5)

    running = {strangers.start(cwd=home(str(number), UID)) for number in range(3 * PLACES)}
    crowd = frozenset(running)
    environment = {allowed_users.VARIABLE: str(rule)}
    with Sensing("--no-probes", environment=environment) as sensor:
        until_watched(lambda found: len(found & crowd) >= 2)
        data = home("data", OTHER_UID)
        for _ in range(3):
            pid = strangers.start(uid=OTHER_UID, cwd=data)
            running.add(pid)
            until_watched(lambda found, pid=pid: pid in found)  # type: ignore[misc]
            strangers.end(pid)
        log = sensor.log
    assert "Traceback" not in log
    assert "raise max_servers" in log


def test_strangers_are_listed_with_a_remedy(strangers: Strangers) -> None:
    pids = {strangers.start() for _ in range(7)}
    with Server("mysql-5.6.24") as server:
        text = innoscope("targets")
        listed = [one for one in json.loads(innoscope("targets", "--json").stdout) if one["pid"] in pids]
        doctor = innoscope("doctor")
        assert innoscope("stacks", "--pid", server.pid).returncode == 0

    assert f"ignored, owned by uid {UID}" in text.stdout
    assert f'add "{UID}" to users in' in text.stdout
    assert f"ignored, owned by uid {UID}" in doctor.stdout
    assert "more" in text.stdout.splitlines()[-1]
    assert {one["pid"] for one in listed} == pids
    assert all("ignored, owned by" in one["ignored"] for one in listed)


def test_root_can_choose_a_stranger_by_its_pid(strangers: Strangers) -> None:
    pid = strangers.start()
    assert find_one(pid).pid == pid
    with pytest.raises(NoTarget, match=r"no server listens|no mysqld") as caught:
        find_one(socket="/nowhere")
    assert f"uid {UID}" in (caught.value.remedy or "")


def _rule(folder: Path, text: str) -> allowed_users.OwnerRule:
    path = folder / "servers.toml"
    path.write_text(text)
    path.chmod(0o644)
    return allowed_users.load(str(path))


def test_processes_of_configured_users_are_servers(strangers: Strangers, folder: Path) -> None:
    pid = strangers.start()
    assert pid not in scan(ProcFs(), _rule(folder, "")).servers
    for text in (f"users = ['{UID}']", f"users = ['mysql', {UID}]", f"users = ['{UID - 1}-{UID + 1}']"):
        assert pid in scan(ProcFs(), _rule(folder, text)).servers
    for text in (f"container_uids = [{UID}]", f"remapped_uids = [{UID}]"):
        assert pid not in scan(ProcFs(), _rule(folder, text)).servers


def test_a_malformed_or_writable_rule_is_refused(folder: Path) -> None:
    path = folder / "servers.toml"
    for text, words in (
        ("users = 1", "line 1: users: Expected `array`, got `int`"), ("x = 1", "unknown field `x`"),
        ("max_servers = 0", "max_servers: Expected `int` >= 1"), ("max_servers = true", "got `bool`"),
        ("users", "as TOML"), ("container_uids = ['mysql']", "Expected `str` matching"),
        ("users = [true]", "got `bool`"), ("users = [-1]", ">= 0"), ("users = [4294967295]", "<= 4294967294"),
        ("users = ['5-3']", "not a range of uids"),
        ("remapped_uids = ['1-4294967295']", "not a range of uids"),
    ):  # fmt: skip
        with pytest.raises(BadFile, match=words):
            _rule(folder, text)
    path.write_text("")
    for mode, owner in ((0o666, 0), (0o664, 0), (0o644, NOBODY)):
        path.chmod(mode)
        os.chown(path, owner, owner)
        with pytest.raises(BadFile, match="users other than root"):
            allowed_users.load(str(path))
    with pytest.raises(BadFile, match="no such file"):
        allowed_users.load(str(folder / "none"))
