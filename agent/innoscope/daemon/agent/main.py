"""The agent: asks the sensor and the servers, keeps an hour of stacks, and serves it all over HTTP."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope import __version__
from innoscope.common.errors import InnoscopeError
from innoscope.common.supervision import Supervisor, Trouble
from innoscope.daemon.agent import child, incident_watch, privileges
from innoscope.daemon.agent.collect import Gatherer
from innoscope.daemon.agent.cpu_budget import CpuBudget
from innoscope.daemon.agent.findings import Findings
from innoscope.daemon.agent.history import History
from innoscope.daemon.agent.incident_watch import Watching
from innoscope.daemon.agent.incidents import Incidents
from innoscope.daemon.agent.page import Page
from innoscope.daemon.agent.profiles import Store
from innoscope.daemon.agent.recorder import Recorders
from innoscope.daemon.agent.routes import Routes
from innoscope.daemon.agent.servers import Servers
from innoscope.daemon.http import auth
from innoscope.daemon.http.server import Address, WebServer
from innoscope.daemon.http.web_config import Watched
from innoscope.daemon.protocol.client import SensorClient, SensorDown
from innoscope.daemon.push.errors import REASONS
from innoscope.daemon.push.pusher import Pusher
from innoscope.metrics import registry
from innoscope.metrics.collectors.own import Pushes, cpu_seconds
from innoscope.sampling.profile_history import CHUNK_S
from innoscope.target import credentials

if TYPE_CHECKING:
    from innoscope.common.supervision import Beat
    from innoscope.daemon.agent.config import Config
    from innoscope.sampling.profile_history import Chunk
    from innoscope.target.model import Target

_log = logging.getLogger(__name__)

#: Seconds for profiles, of which an hour may have to be taken over at once.
_PATIENT: Final = 5.0
_GATHERING: Final = 0.8
#: Seconds for the looks of a minute.
_LOOKS: Final = 2.0
#: The page's numbers are kept every poll, but no more often than stacks are; a gathering for a scrape counts
#: for them too while it is younger than this share of that time.
_STILL_NEW: Final = 0.9
#: Seconds without a sign of life after which a thread hangs, and of the one that polls, beside its pause.
_HANGS_S: Final = 60.0
_POLL_HANGS_S: Final = 90.0
#: malloc.h. A thread a connection would each get a heap of its own, and keep what its answer took.
_M_ARENA_MAX: Final = -8
_HEAPS: Final = 2
#: Seconds that what is still to be pushed may hold up our end, and then all threads that are at work.
_LAST_PUSH: Final = 3.0
_END_S: Final = 0.5


class Agent:
    """Listens from the moment it is made, and answers from ``run`` on. Raises BadFile."""

    def __init__(self, config: Config) -> None:
        sensor = SensorClient(config.sensor.socket, config.sensor.timeout_seconds)
        patient = SensorClient(config.sensor.socket, _PATIENT)
        looks = SensorClient(config.sensor.socket, _LOOKS)
        web_file = config.web.config_file
        self.watched = Watched(Path(web_file) if web_file else None)
        if self.watched.config.users:
            auth.require_bcrypt()
        self._config = config
        self._servers = servers = Servers(config)
        self._gatherer = Gatherer(sensor, servers, registry.default())
        self._step_s = max(config.stacks.poll_seconds, CHUNK_S)
        self.history = History(config.stacks.keep_seconds)
        self._noted_at = 0.0
        rules = incident_watch.settings(config.watch)
        self._recorders = Recorders(servers, looks, rules.span_s)
        self.incidents = Incidents(config.watch)
        self._watching = Watching(rules, self._gatherer, self._recorders, self.incidents)
        if rules.triggers:
            self._gatherer.incidents = self._watching.samples
        self._pusher = self._make_pusher(config)
        self._store = Store(patient, servers.called, config.stacks.keep_seconds, taken=self._take)
        page = Page(
            self._gatherer,
            self._store,
            self.history,
            telemetry_path=config.web.telemetry_path,
            step_s=self._step_s,
            keep_s=config.stacks.keep_seconds,
        )
        routes = Routes(self._gatherer, self._store, page, sensor, servers.name_of, config.web.telemetry_path)
        more = {
            "/api/findings": Findings(self._gatherer, self._recorders).answer,
            "/api/incidents": self.incidents.answer,
        }
        self._budget = CpuBudget(config.own)
        self.ended = threading.Event()
        self._supervisor = Supervisor()
        self._gatherer.trouble = self._trouble
        self.web = WebServer(
            Address.parse(config.web.listen_address), {**routes.table(), **more}, self.watched
        )
        scheme = "https" if self.watched.config.tls else "http"
        address = f"{scheme}://{self.web.address}"
        _log.info("agent listens", extra={"address": address, "version": __version__})
        if not self.web.local and not self.watched.config.authenticates:
            _log.warning("everybody who reaches this address may read the metrics; stacks are not served")

    def _make_pusher(self, config: Config) -> Pusher | None:
        if config.push.url is None:
            return None
        self._gatherer.pushes = Pushes(failures=dict.fromkeys(REASONS, 0))
        return Pusher(config.push, self._gatherer.pushes)

    def _take(self, server: str, target: Target, chunks: list[Chunk]) -> None:
        """What is new of a server's stacks."""
        self.history.looked(server, chunks)
        if self._pusher is not None:
            self._pusher.take(server, target, chunks)

    def run(self) -> None:
        """Serve until ``ended`` is set. Raises GaveUp."""
        start = self._supervisor.start
        start("workers", self._servers.workers.run, _HANGS_S)
        start("web", self.web.serve, _HANGS_S)
        start("poll", self._poll, self._config.stacks.poll_seconds + _POLL_HANGS_S)
        if self._config.watch.triggers:
            self._begin_watching()
        if self._pusher is not None:
            start("push", self._pusher.run, self._pusher.hangs_s)
        self._supervisor.watch(self.ended)
        self.web.stop()
        if self._pusher is not None:
            self._pusher.end()
            self._supervisor.join("push", _LAST_PUSH)
        self._servers.workers.close()
        self._supervisor.join_all(_END_S)

    def _trouble(self) -> Trouble:
        stuck = self._supervisor.hung() + len(self._servers.workers.stuck())
        return Trouble(restarts=self._supervisor.restarts, stuck=stuck)

    def _begin_watching(self) -> None:
        try:
            self.incidents.prepare()
        except InnoscopeError as error:  # the rest of us is of use without it
            _log.error("no incident files", extra={"error": error.what, "remedy": error.remedy})
            return
        self._supervisor.start("watch", partial(self._watching.run, self.ended), _HANGS_S)

    def _poll(self, beat: Beat) -> None:
        """Now and then: profiles, and servers where the sensor is of no help."""
        self._maintain()
        self._gatherer.gather(_GATHERING)
        self._supervisor.ready()
        while True:
            beat()
            self._take_over_profiles()
            self._note_numbers()
            # Not before an hour of stacks was taken over: that is no steady cost.
            self._budget.check(time.monotonic(), cpu_seconds())
            if self.ended.wait(self._config.stacks.poll_seconds):
                return
            self._maintain()

    def _take_over_profiles(self) -> None:
        try:
            self._store.poll()
        except SensorDown as error:
            _log.debug("no profiles", extra={"reason": error.what})
        except Exception:
            _log.exception("no profiles")

    def _note_numbers(self) -> None:
        """What the page draws, whether anybody scrapes or not."""
        now = time.monotonic()
        if now - self._noted_at < self._step_s * _STILL_NEW:
            return
        self._noted_at = now
        try:
            picture = self._gatherer.recent(_GATHERING, self._step_s * _STILL_NEW)
            if picture is not None:
                at = time.time() - (time.monotonic() - picture.at)
                self.history.gathered(at, picture.series)
                self._recorders.gathered(at, picture)
        except Exception:
            _log.exception("no numbers")

    def _maintain(self) -> None:
        try:
            self._gatherer.maintain()
        except Exception:  # those that are known must go on being asked
            _log.exception("no search for servers")


def run(config: Config) -> None:
    """The whole life of ``innoscope agent``. Raises InnoscopeError when it cannot begin."""
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _HEAPS)
    agent = Agent(config)
    own = None
    try:
        if os.geteuid() == 0:
            own = _as_root(config)
        signal.signal(signal.SIGTERM, lambda *_: agent.ended.set())
        signal.signal(signal.SIGINT, lambda *_: agent.ended.set())
        signal.signal(signal.SIGHUP, lambda *_: agent.watched.reload())
        agent.run()
    finally:
        if own is not None:
            own.end()
    _log.info("agent ends")


def _as_root(config: Config) -> child.OwnSensor | None:
    """Start a sensor if there is none, then give up all rights.

    We become another user where that one can do our work: where it can read the account's option file, and
    the sensor is ours to open for it. Else we stay user 0, who owns root's files, without capabilities.
    """
    other = privileges.unprivileged()
    files = _option_files(config)
    answered = child.answers(config.sensor.socket)
    account = (
        other
        if files and not answered and privileges.readable_by(other, [*files, *config.push.files])
        else None
    )
    own = None
    if config.sensor.start and not answered and "NOTIFY_SOCKET" not in os.environ:
        group = ("--group", account.group) if account else ()
        own = child.OwnSensor(config.sensor.socket, [*group, "--log-format", config.log.format])
        try:
            own.wait_ready()
        except InnoscopeError as error:  # SQL and what /proc tells work without it
            _log.warning("no sensor", extra={"reason": error.what, "remedy": error.remedy})
            own = None
    if config.watch.triggers:
        _place_for_incidents(Path(config.watch.directory), account)
    privileges.drop(account)
    _log.info("rights given up", extra={"user": account.name if account else "root, without capabilities"})
    return own


def _place_for_incidents(folder: Path, account: privileges.Account | None) -> None:
    """A folder of the agent's own; one that is there stays as it is, which the log may complain of."""
    with suppress(OSError):
        folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        if account is not None:
            os.chown(folder, account.uid, account.gid, follow_symlinks=False)


def _option_files(config: Config) -> list[Path]:
    """Those that name an account: without any, we are to servers who we are to the system."""
    named = {config.sql.defaults_file, *(server.defaults_file for server in config.server)}
    return [path for name in named for path in credentials.files_with_account(name)]
