"""The agent: collect metrics and stacks from the sensor and the servers, and serve them over HTTP."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope import __version__, _native
from innoscope.common.errors import InnoscopeError
from innoscope.common.supervision import Supervisor, Trouble
from innoscope.daemon.agent import child, incident_watch, privileges
from innoscope.daemon.agent.collect import Gatherer
from innoscope.daemon.agent.cpu_budget import CpuBudget
from innoscope.daemon.agent.finding_scores import FindingScores
from innoscope.daemon.agent.findings import Findings
from innoscope.daemon.agent.history import ServerHistories
from innoscope.daemon.agent.incident_watch import IncidentWatch
from innoscope.daemon.agent.incidents import Incidents
from innoscope.daemon.agent.marks import Marks
from innoscope.daemon.agent.notifier import HANGS_S as NOTIFIER_HANGS_S
from innoscope.daemon.agent.notifier import Notifier
from innoscope.daemon.agent.otlp_source import NewFindings, OtlpSource, incident_record
from innoscope.daemon.agent.page import LivePage
from innoscope.daemon.agent.recorder import Recorders
from innoscope.daemon.agent.routes import Routes
from innoscope.daemon.agent.servers import Servers
from innoscope.daemon.agent.session_hour import SessionHour
from innoscope.daemon.agent.session_recorder import SessionRecorder
from innoscope.daemon.agent.sessions_api import SessionsApi
from innoscope.daemon.agent.stack_history import ProfileStore
from innoscope.daemon.agent.uploader import HANGS_S as UPLOADER_HANGS_S
from innoscope.daemon.agent.uploader import Uploader
from innoscope.daemon.http import auth
from innoscope.daemon.http.server import ListenAddress, WebServer
from innoscope.daemon.http.web_config import Watched
from innoscope.daemon.protocol.client import SensorClient, SensorDown
from innoscope.daemon.push.errors import REASONS
from innoscope.daemon.push.otlp import OtlpExporter
from innoscope.daemon.push.pusher import Pusher
from innoscope.metrics import registry
from innoscope.metrics.collectors.own import Pushes, cpu_seconds
from innoscope.sampling.profile_history import CHUNK_S
from innoscope.sampling.sessions.store import HistoryLimits, HistoryStore
from innoscope.target import credentials

if TYPE_CHECKING:
    from innoscope.common.supervision import Beat
    from innoscope.daemon.agent import config as configuration
    from innoscope.daemon.agent.config import Config
    from innoscope.daemon.push.settings import Notify
    from innoscope.sampling.profile_history import Chunk
    from innoscope.target.model import Target

_log = logging.getLogger(__name__)

#: Timeout for a request for profiles, in seconds. A reply may contain ten minutes of one server's profiles.
_PROFILES_S: Final = 5.0
#: Timeout for a request for the snapshots of one minute, in seconds.
_SNAPSHOTS_S: Final = 2.0
#: The live page's metrics are recorded once per step. A scrape younger than this share of a step is reused.
_MAX_SCRAPE_AGE: Final = 0.9
#: A thread without a heartbeat for this many seconds counts as hung.
_HANGS_S: Final = 60.0
#: The polling thread counts as hung after this many seconds plus the pause between polls.
_POLL_HANGS_S: Final = 90.0
#: Seconds allowed at shutdown for the pusher to send what remains, and again for the OTLP exporter.
_LAST_PUSH_S: Final = 3.0
#: Seconds allowed at shutdown for writing the remaining samples to the history.
_LAST_WRITE_S: Final = 3.0
#: Seconds allowed at shutdown, after the last push and the last write, for all threads to exit.
_END_S: Final = 0.5


class Agent:
    """The agent. Its constructor opens the listening socket or raises BadFile; ``run`` serves requests."""

    def __init__(self, config: Config) -> None:
        sensor = SensorClient(config.sensor.socket, config.sensor.timeout_seconds)
        profiles_client = SensorClient(config.sensor.socket, _PROFILES_S)
        snapshots_client = SensorClient(config.sensor.socket, _SNAPSHOTS_S)
        web_file = config.web.config_file
        self.watched = Watched(Path(web_file) if web_file else None)
        if self.watched.config.users:
            auth.require_bcrypt()
        self._config = config
        self._servers = servers = Servers(config)
        self._gatherer = Gatherer(sensor, servers, registry.default())
        self._step_s = max(config.stacks.poll_seconds, CHUNK_S)
        self.history = ServerHistories(config.stacks.keep_seconds)
        self.marks = Marks(config.stacks.keep_seconds)
        self._recorded_at = 0.0
        rules = incident_watch.settings(config.watch)
        self._recorders = Recorders(servers, snapshots_client, rules.span_s)
        self.incidents = Incidents(config.watch, notify=config.notify.url is not None)
        self._incident_watch = IncidentWatch(rules, self._gatherer, self._recorders, self.incidents)
        if rules.triggers:
            self._gatherer.incidents = self._incident_watch.samples
            self._gatherer.watch = self._incident_watch.own_samples
        self._finding_scores = FindingScores(self._recorders, self._step_s)
        self._gatherer.findings = lambda server: self._finding_scores.samples(server, time.time())
        self._pusher = self._make_pusher(config)
        self.sessions = SessionHour(config.stacks.keep_seconds)
        self._store = ProfileStore(
            profiles_client,
            servers.own_name,
            config.stacks.keep_seconds,
            on_new=self._add_chunks,
            sessions=self.sessions,
        )
        self._session_recorder = SessionRecorder(
            profiles_client,
            servers.own_name,
            config.stacks.poll_seconds,
            self.sessions,
            _history_store(config.history),
        )
        page = LivePage(
            self._gatherer,
            self._store,
            self.history,
            telemetry_path=config.web.telemetry_path,
            step_s=self._step_s,
            keep_s=config.stacks.keep_seconds,
            marks=self.marks,
        )
        routes = Routes(
            self._gatherer, self._store, page, sensor, servers.own_name_of, config.web.telemetry_path
        )
        more = {
            "/api/findings": Findings(self._gatherer, self._recorders, self._store).answer,
            "/api/sessions": SessionsApi(self.sessions, self._gatherer).answer,
            "/api/incidents": self.incidents.answer,
        }
        self._budget = CpuBudget(config.own)
        self.ended = threading.Event()
        self._supervisor = Supervisor()
        self._gatherer.trouble = self._trouble
        self.web = WebServer(
            ListenAddress.parse(config.web.listen_address), {**routes.table(), **more}, self.watched
        )
        scheme = "https" if self.watched.config.tls else "http"
        address = f"{scheme}://{self.web.address}"
        page_url = config.notify.page_url or f"{scheme}://{socket.gethostname()}:{self.web.address.port}"
        self._page_url = page_url.rstrip("/")
        self._notifier = self._make_notifier(config.notify)
        self._exporter = self._make_exporter(config)
        self._uploader = Uploader(config.upload, self.incidents) if config.upload.url is not None else None
        if self._uploader is not None:
            self._gatherer.uploads = self._uploader.samples
        _log.info("agent listens", extra={"address": address, "version": __version__})
        if not self.web.local and not self.watched.config.authenticates:
            _log.warning("metrics are readable without authentication; stacks are not served")

    def _make_pusher(self, config: Config) -> Pusher | None:
        if config.push.url is None:
            return None
        self._gatherer.pushes = Pushes(failures=dict.fromkeys(REASONS, 0))
        return Pusher(config.push, self._gatherer.pushes)

    def _make_notifier(self, notify: Notify) -> Notifier | None:
        if notify.url is None:
            return None
        notifier = Notifier(notify, self.incidents, self._page_url)
        self._gatherer.notifications = notifier.samples
        return notifier

    def _make_exporter(self, config: Config) -> OtlpExporter | None:
        if config.otlp.url is None:
            return None
        source = OtlpSource(config.otlp, self._gatherer, self._servers)
        exporter = OtlpExporter(config.otlp, source.values, source.resources)
        new = NewFindings(self._page_url)
        self._finding_scores.on_verdicts = lambda verdicts: exporter.log(new.records(verdicts))
        record = partial(incident_record, self._page_url)
        self._incident_watch.on_file = lambda *capture: exporter.log([record(*capture)])
        self._gatherer.otlp = exporter.samples
        return exporter

    def _add_chunks(self, server: str, target: Target, chunks: list[Chunk]) -> None:
        """Pass new chunks of a server to the history, the pusher and the exporter."""
        self.history.add_profiles(server, chunks)
        if self._pusher is not None:
            self._pusher.take(server, target, chunks)
        if self._exporter is not None:
            self._exporter.take(server, target, chunks)

    def run(self) -> None:
        """Run the agent until ``ended`` is set. Raise GaveUp if a thread keeps failing."""
        start = self._supervisor.start
        start("workers", self._servers.workers.run, _HANGS_S)
        start("web", self.web.serve, _HANGS_S)
        start("poll", self._poll, self._config.stacks.poll_seconds + _POLL_HANGS_S)
        if self._config.watch.triggers:
            self._start_incident_watch()
        self._start_history()
        if self._pusher is not None:
            start("push", self._pusher.run, self._pusher.hangs_s)
        if self._exporter is not None:
            start("otlp", self._exporter.run, self._exporter.hangs_s)
        self._supervisor.watch(self.ended)
        self.web.stop()
        if self._pusher is not None:
            self._pusher.end()
            self._supervisor.join("push", _LAST_PUSH_S)
        if self._exporter is not None:
            self._exporter.end()
            self._supervisor.join("otlp", _LAST_PUSH_S)
        if not self._supervisor.join("history", _LAST_WRITE_S):
            extra = {"waited_s": _LAST_WRITE_S}
            _log.warning("the last samples may be missing from the history", extra=extra)
        self._servers.workers.close()
        self._supervisor.join_all(_END_S)

    def _trouble(self) -> Trouble:
        stuck = self._supervisor.hung() + len(self._servers.workers.stuck())
        return Trouble(restarts=self._supervisor.restarts, stuck=stuck)

    def _start_incident_watch(self) -> None:
        self._supervisor.start("watch", partial(self._incident_watch.run, self.ended), _HANGS_S)
        if self._notifier is not None:
            hangs_s = NOTIFIER_HANGS_S + self._config.notify.timeout_seconds
            self._supervisor.start("notify", partial(self._notifier.run, self.ended), hangs_s)
        if self._uploader is not None:
            hangs_s = UPLOADER_HANGS_S + self._config.upload.timeout_seconds
            self._supervisor.start("upload", partial(self._uploader.run, self.ended), hangs_s)

    def _start_history(self) -> None:
        self._gatherer.history = self._session_recorder.samples
        hangs_s = self._config.stacks.poll_seconds + _POLL_HANGS_S
        self._supervisor.start("history", partial(self._session_recorder.run, self.ended), hangs_s)

    def _poll(self, beat: Beat) -> None:
        """Fetch profiles, record metrics and search for servers every ``stacks.poll_seconds``."""
        self._maintain()
        self._gatherer.gather()
        self._supervisor.ready()
        while True:
            beat()
            self._fetch_profiles()
            self._record_numbers()
            # Start the budget's window after the first fetch, which may return ten minutes of stacks and is
            # not a steady cost.
            self._budget.check(time.monotonic(), cpu_seconds())
            if self.ended.wait(self._config.stacks.poll_seconds):
                return
            self._maintain()

    def _fetch_profiles(self) -> None:
        try:
            self._store.poll()
        except SensorDown as error:
            _log.debug("cannot fetch profiles", extra={"reason": error.what})
        except Exception:
            _log.exception("cannot fetch profiles")

    def _record_numbers(self) -> None:
        """Record the metrics that the live page plots, at most once per step."""
        now = time.monotonic()
        if now - self._recorded_at < self._step_s * _MAX_SCRAPE_AGE:
            return
        self._recorded_at = now
        try:
            scrape = self._gatherer.recent(self._step_s * _MAX_SCRAPE_AGE)
            if scrape is not None:
                at = time.time() - (time.monotonic() - scrape.at)
                self.history.add_scrape(at, scrape.series)
                self._recorders.add_scrape(at, scrape)
                self.marks.add_scrape(at, scrape)
                self._finding_scores.refresh(time.time())
        except Exception:
            _log.exception("cannot record metrics")

    def _maintain(self) -> None:
        try:
            self._gatherer.maintain()
        except Exception:  # continue to collect from known servers
            _log.exception("cannot search for servers")


def _history_store(history: configuration.HistorySettings) -> HistoryStore | None:
    """Return the writer of the history on disk; None if the history is disabled."""
    if not history.enabled:
        return None
    return HistoryStore(Path(history.directory), HistoryLimits(history.keep_seconds, history.max_bytes))


def run(config: Config) -> None:
    """Run ``innoscope agent`` until SIGTERM or SIGINT arrives. Raise InnoscopeError if it cannot start."""
    _native.limit_retained_memory()
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
    _log.info("agent exits")


def _as_root(config: Config) -> child.OwnSensor | None:
    """Start a sensor if none is running, then drop all privileges. Raise NoRights if they cannot be dropped.

    No sensor is started if the configuration forbids it, or if systemd started the agent.

    The agent switches to an unprivileged user if no sensor was running, an option file configures a database
    account, and the user can read all such files and all files with secrets. If the agent then starts a
    sensor, the sensor's socket belongs to the user's group. Otherwise, the agent remains root, but without
    capabilities.
    """
    other = privileges.unprivileged()
    files = _option_files(config)
    receivers = (config.push, config.otlp, config.notify, config.upload)
    secrets = [file for receiver in receivers for file in receiver.files]
    already_running = child.answers(config.sensor.socket)
    account = (
        other if files and not already_running and privileges.readable_by(other, [*files, *secrets]) else None
    )
    own = None
    if config.sensor.start and not already_running and "NOTIFY_SOCKET" not in os.environ:
        group = ("--group", account.group) if account else ()
        own = child.OwnSensor(config.sensor.socket, [*group, "--log-format", config.log.format])
        try:
            own.wait_ready()
        except InnoscopeError as error:  # SQL and /proc work without a sensor
            _log.warning("no sensor", extra={"reason": error.what, "remedy": error.remedy})
            own = None
    if config.watch.triggers:
        create_folder(Path(config.watch.directory), account)
    if config.history.enabled:
        create_folder(Path(config.history.directory), account)
    privileges.drop(account)
    _log.info("privileges dropped", extra={"user": account.name if account else "root, without capabilities"})
    return own


def create_folder(folder: Path, account: privileges.SystemAccount | None) -> None:
    """Create a directory and its parent, owned by the account. Do not change existing ones. Ignore errors."""
    with suppress(OSError):
        folder.parent.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        for path in (folder.parent, folder):  # the parent may be the directory of the incident files
            if not path.exists():
                path.mkdir(mode=0o700)
                if account is not None:
                    os.chown(path, account.uid, account.gid, follow_symlinks=False)


def _option_files(config: Config) -> list[Path]:
    """Return the option files that configure a database account.

    If there are none, the agent logs in as the operating-system user that it runs as.
    """
    named = {config.sql.defaults_file, *(server.defaults_file for server in config.server)}
    return [path for name in named for path in credentials.files_with_account(name)]
