"""The agent's configuration, a TOML file. ``packaging/agent.toml`` documents every key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, field

from innoscope.common import schema
from innoscope.common.errors import BadFile
from innoscope.common.logs import FORMATS, LEVELS
from innoscope.daemon.push.settings import Notify, Otlp, Push, Upload
from innoscope.diagnose.watch.triggers import BadTrigger, parse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Maximum ``before_seconds``. The sensor stores three minutes of snapshots, which must also cover the stall.
MOST_BEFORE_S: Final = 60.0
_EXPLAINED = "packaging/agent.toml explains all keys"


class Web(schema.Entry, frozen=True):
    """Settings for the HTTP server."""

    listen_address: str = "127.0.0.1:9977"
    #: URL path of the metrics; not ``/``, which serves the live page.
    telemetry_path: Annotated[str, Meta(pattern="^/.")] = "/metrics"
    config_file: str | None = None


class SensorConnection(schema.Entry, frozen=True):
    """Settings for the connection to the sensor, the privileged process."""

    socket: str = "/run/innoscope/sensor.sock"
    #: Below one second, because a whole scrape must complete within one second.
    timeout_seconds: Annotated[float, Meta(ge=0.01, le=0.8)] = 0.5
    start: bool = True


class Sql(schema.Entry, frozen=True):
    """Settings for SQL queries on the servers."""

    enabled: bool = True
    defaults_file: str | None = None
    user: str | None = None
    timeout_seconds: Annotated[float, Meta(ge=0.01, le=0.8)] = 0.5
    state_seconds: Annotated[float, Meta(ge=1, le=300)] = 10
    #: ``schema.table``. Only these characters are allowed, because statements contain the names as quoted
    #: identifiers.
    heartbeat_table: Annotated[str, Meta(pattern=r"\A[\w$-]+\.[\w$-]+\Z")] | None = None
    heartbeat_utc: bool = False


class Stacks(schema.Entry, frozen=True):
    """Settings for the history of folded stacks."""

    keep_seconds: Annotated[float, Meta(ge=60, le=86_400)] = 3600
    poll_seconds: Annotated[float, Meta(ge=1, le=60)] = 10


class HistorySettings(schema.Entry, frozen=True):
    """Settings for the active session history on disk."""

    enabled: bool = True
    directory: str = "/var/lib/innoscope-agent/history"
    keep_seconds: Annotated[float, Meta(ge=3600, le=366 * 86_400)] = 7 * 86_400
    max_bytes: Annotated[int, Meta(ge=16 << 20)] = 2 << 30


class Own(schema.Entry, frozen=True):
    """The agent's CPU budget, as a share of one core; 0 means no limit.

    If the agent uses more, it logs a warning.
    """

    cpu_budget: Annotated[float, Meta(ge=0, le=1)] = 0.05
    window_seconds: Annotated[float, Meta(ge=10, le=600)] = 60


class Watch(schema.Entry, frozen=True):
    """Triggers for captures, and limits on the incident files. Without triggers, nothing is captured."""

    triggers: tuple[str, ...] = ()
    for_seconds: Annotated[float, Meta(ge=0, le=30)] = 3
    seconds: Annotated[float, Meta(ge=1, le=60)] = 10
    before_seconds: Annotated[float, Meta(ge=0, le=MOST_BEFORE_S)] = 60
    cooldown_seconds: Annotated[float, Meta(ge=10, le=86_400)] = 300
    directory: str = "/var/lib/innoscope-agent"
    max_files: Annotated[int, Meta(ge=1)] = 20
    max_bytes: Annotated[int, Meta(ge=1 << 20)] = 200 << 20

    def __post_init__(self) -> None:
        for rule in self.triggers:
            try:
                parse(rule)
            except BadTrigger as error:
                hint = (error.remedy or "").replace("\n", "; ")
                raise ValueError(f"triggers: {error.what} ({hint})") from error


class Log(schema.Entry, frozen=True):
    """Settings for logging to standard error."""

    level: Annotated[str, Meta(pattern=rf"\A({'|'.join(LEVELS)})\Z")] = "info"
    format: Annotated[str, Meta(pattern=rf"\A({'|'.join(FORMATS)})\Z")] = "logfmt"


class Server(schema.Entry, frozen=True):
    """A configured server, identified by its socket, or by its port on this host or on ``host``."""

    name: str
    socket: str | None = None
    host: str | None = None
    port: int | None = None
    defaults_file: str | None = None
    user: str | None = None

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise ValueError(f"the name {self.name!r} is empty or not printable")
        if self.host is not None and self.port is None:
            raise ValueError(f"server {self.name!r} has a host but no port")
        if self.socket is None and self.port is None:
            raise ValueError(f"server {self.name!r} needs a socket or a port")


class Config(schema.Entry, frozen=True):
    """The whole configuration. Sections missing from the file have default values."""

    web: Web = field(default_factory=Web)
    sensor: SensorConnection = field(default_factory=SensorConnection)
    sql: Sql = field(default_factory=Sql)
    stacks: Stacks = field(default_factory=Stacks)
    history: HistorySettings = field(default_factory=HistorySettings)
    push: Push = field(default_factory=Push)
    otlp: Otlp = field(default_factory=Otlp)
    notify: Notify = field(default_factory=Notify)
    upload: Upload = field(default_factory=Upload)
    own: Own = field(default_factory=Own)
    watch: Watch = field(default_factory=Watch)
    log: Log = field(default_factory=Log)
    server: tuple[Server, ...] = ()
    only_named: bool = False

    def __post_init__(self) -> None:
        names = [server.name for server in self.server]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise ValueError(f"duplicate server name {duplicates[0]!r}")
        if self.notify.url is not None and not self.watch.triggers:
            raise ValueError("notify.url needs watch.triggers, because captured incidents are reported")
        if self.upload.url is not None and not self.watch.triggers:
            raise ValueError("upload.url needs watch.triggers, because captured incidents are uploaded")


def load(path: Path) -> Config:
    """Read and validate a configuration file. Raise BadFile if it cannot be read or is invalid."""
    try:
        return schema.read_toml(path, Config)
    except BadFile as error:
        raise BadFile(error.what, remedy=error.remedy or _EXPLAINED) from error


def changed(config: Config, options: Mapping[str, Mapping[str, Any]]) -> Config:
    """Return the configuration, overridden by all command line options that are not None.

    Raise BadFile if an option is invalid.
    """
    document = msgspec.to_builtins(config)
    for section, values in options.items():
        document[section] |= {name: value for name, value in values.items() if value is not None}
    try:
        return schema.convert(document, Config, "the command line")
    except BadFile as error:
        raise BadFile(error.what, remedy=_EXPLAINED) from error
