"""The agent's configuration, a TOML file. ``packaging/agent.toml`` documents every key."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_origin, get_type_hints

from innoscope.common.errors import BadFile
from innoscope.common.logs import FORMATS, LEVELS
from innoscope.daemon.push.settings import Push
from innoscope.daemon.push.settings import problems as push_problems
from innoscope.diagnose.watch.triggers import BadTrigger, parse

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

#: The sensor stores three minutes of snapshots.
MOST_BEFORE_S: Final = 60.0
_EXPLAINED = "packaging/agent.toml explains all keys"
#: Keys of earlier versions that have no replacement.
_REMOVED: Final = ("own.profile_seconds",)


@dataclass(frozen=True, slots=True)
class Web:
    """The HTTP server."""

    listen_address: str = "127.0.0.1:9977"
    telemetry_path: str = "/metrics"
    config_file: str | None = None


@dataclass(frozen=True, slots=True)
class Sensor:
    """The privileged process."""

    socket: str = "/run/innoscope/sensor.sock"
    timeout_seconds: float = 0.5
    start: bool = True


@dataclass(frozen=True, slots=True)
class Sql:
    """How to query servers over SQL."""

    enabled: bool = True
    defaults_file: str | None = None
    user: str | None = None
    timeout_seconds: float = 0.5


@dataclass(frozen=True, slots=True)
class Stacks:
    """The history of folded stacks."""

    keep_seconds: float = 3600
    poll_seconds: float = 10


@dataclass(frozen=True, slots=True)
class Own:
    """CPU budget of the agent as a share of one core. It logs a warning if it uses more."""

    cpu_budget: float = 0.05
    window_seconds: float = 60


@dataclass(frozen=True, slots=True)
class Watch:
    """Triggers that capture a stall, and where the files go. Without triggers nothing is captured."""

    triggers: tuple[str, ...] = ()
    for_seconds: float = 3
    seconds: float = 10
    before_seconds: float = 60
    cooldown_seconds: float = 300
    directory: str = "/var/lib/innoscope-agent"
    max_files: int = 20
    max_bytes: int = 200 << 20


@dataclass(frozen=True, slots=True)
class Log:
    """Logging to standard error."""

    level: str = "info"
    format: str = "logfmt"


@dataclass(frozen=True, slots=True)
class Server:
    """A configured server, identified by its socket or its port."""

    name: str
    socket: str | None = None
    host: str | None = None
    port: int | None = None
    defaults_file: str | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """All sections, with their defaults."""

    web: Web = field(default_factory=Web)
    sensor: Sensor = field(default_factory=Sensor)
    sql: Sql = field(default_factory=Sql)
    stacks: Stacks = field(default_factory=Stacks)
    push: Push = field(default_factory=Push)
    own: Own = field(default_factory=Own)
    watch: Watch = field(default_factory=Watch)
    log: Log = field(default_factory=Log)
    server: tuple[Server, ...] = ()
    only_named: bool = False


_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


def load(path: Path) -> Config:
    """Read and check the file. Raises BadFile, which says all that is wrong."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}", remedy=f"ls -l {path}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"{path} is not TOML: {error}", remedy="packaging/agent.toml is an example") from error
    found: list[str] = []
    config = _build(Config, data, "", found)
    if config is None:
        raise BadFile(f"{path}: {found[0]}", remedy="\n".join(found[1:]) or _EXPLAINED)
    require_sane(config, str(path))
    return config


def require_sane(config: Config, where: str) -> None:
    """Raises BadFile with all that is wrong with the values."""
    found = problems(config)
    if found:
        raise BadFile(f"{where}: {found[0]}", remedy="\n".join(found[1:]) or _EXPLAINED)


def problems(config: Config) -> list[str]:
    """What is wrong with the values, in words; empty when nothing is."""
    found = []
    if config.log.level not in LEVELS:
        found.append(f"log.level is one of {', '.join(LEVELS)}, not {config.log.level!r}")
    if config.log.format not in FORMATS:
        found.append(f"log.format is one of {', '.join(FORMATS)}, not {config.log.format!r}")
    if not config.web.telemetry_path.startswith("/") or config.web.telemetry_path == "/":
        found.append("web.telemetry_path is a path other than /, such as /metrics")
    found += [
        f"{name}.timeout_seconds is between 0.01 and 0.8: a scrape answers within a second"
        for name in ("sensor", "sql")
        if not 0.01 <= getattr(config, name).timeout_seconds <= 0.8
    ]
    if not 60 <= config.stacks.keep_seconds <= 86_400 or not 1 <= config.stacks.poll_seconds <= 60:
        found.append("stacks.keep_seconds is between 60 and 86400, stacks.poll_seconds between 1 and 60")
    if not 0 <= config.own.cpu_budget <= 1:
        found.append("own.cpu_budget is a share of one core between 0 (no warning) and 1")
    if not 10 <= config.own.window_seconds <= 600:
        found.append("own.window_seconds is between 10 and 600")
    found += push_problems(config.push)
    found += _watch_problems(config.watch)
    for server in config.server:
        found += _server_problems(server, [other.name for other in config.server])
    return found


def _watch_problems(watch: Watch) -> list[str]:
    found = []
    for rule in watch.triggers:
        try:
            parse(rule)
        except BadTrigger as error:
            hint = (error.remedy or "").replace("\n", "; ")
            found.append(f"watch.triggers: {error.what} ({hint})")
    if not 0 <= watch.for_seconds <= 30 or not 1 <= watch.seconds <= 60:
        found.append("watch.for_seconds is between 0 and 30, watch.seconds between 1 and 60")
    if not 0 <= watch.before_seconds <= MOST_BEFORE_S or not 10 <= watch.cooldown_seconds <= 86_400:
        found.append(
            f"watch.before_seconds is between 0 and {MOST_BEFORE_S:g}, which is what the sensor keeps, "
            "watch.cooldown_seconds between 10 and 86400"
        )
    if watch.max_files < 1 or watch.max_bytes < 1 << 20:
        found.append("watch.max_files is 1 or more, watch.max_bytes 1048576 or more")
    return found


def _server_problems(server: Server, names: list[str]) -> list[str]:
    found = []
    if not server.name or not server.name.isprintable() or names.count(server.name) > 1:
        found.append(f"server names are there, printable and different from each other: {server.name!r}")
    if server.socket is None and server.port is None:
        found.append(f"server {server.name!r} needs a socket or a port")
    if server.host is not None and server.port is None:
        found.append(f"server {server.name!r} has a host and no port")
    return found


def _build(kind: type[T], table: dict[str, Any], path: str, found: list[str]) -> T | None:
    """An instance of the dataclass, its problems added to ``found``; None when it cannot be made."""
    hints = get_type_hints(kind)
    for key in table.keys() - hints.keys():
        if f"{path}{key}" in _REMOVED:
            found.append(f"{path}{key} is no longer used: remove it")
            continue
        near = difflib.get_close_matches(key, hints, 1)
        found.append(f"unknown key {path}{key}" + (f", did you mean {path}{near[0]}?" if near else ""))
    values = {
        name: _value(hints[name], table[name], f"{path}{name}", found) for name in hints if name in table
    }
    missing = [
        item.name
        for item in fields(kind)  # type: ignore[arg-type]
        if item.default is MISSING and item.default_factory is MISSING and item.name not in values
    ]
    found += [f"{path}{name} is missing" for name in missing]
    return None if found else kind(**values)


def _value(hint: Any, value: Any, path: str, found: list[str]) -> Any:
    """The value as the hint has it; a complaint in ``found`` when it is of another type."""
    if is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, dict):
            return _build(hint, value, f"{path}.", found)
        found.append(f"{path} is a table: [{path}]")
        return None
    if get_origin(hint) is dict:
        if isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
            return dict(value)
        found.append(f"{path} is a table of strings")
        return {}
    if get_origin(hint) is tuple:
        return _list(get_args(hint)[0], value, path, found)
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kinds = tuple(kind for kind in kinds if kind is not NoneType)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        found.append(f"{path} is {_NAMES[kinds[0]]}, not {value!r}")
    return value


def _list(kind: Any, value: Any, path: str, found: list[str]) -> tuple[Any, ...]:
    """Strings, or tables that are dataclasses; a complaint in ``found`` when it is something else."""
    wanted = str if kind is str else dict
    if not isinstance(value, list) or not all(isinstance(item, wanted) for item in value):
        found.append(f"{path} is a list of " + ("strings" if kind is str else f"tables: [[{path}]]"))
        return ()
    if kind is str:
        return tuple(value)
    return tuple(_build(kind, item, f"{path}[{place}].", found) for place, item in enumerate(value))
