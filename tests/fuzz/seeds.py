"""Make seed corpora from the real servers: unwind information, names, packs, replies, incident files."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from fuzz import document_seeds, elf_seeds
from fuzz.server_memory import INDIRECT_NAMES, QUEUES, SHORT_IDS, TICKETS, TICKETS_UNIT, seed
from fuzz.targets import LOADERS, RUST, json_bytes
from innoscope import _native
from innoscope.common.data import catalog_path
from innoscope.common.samples import Histogram, Outcome, Sample
from innoscope.daemon.protocol import messages
from innoscope.daemon.protocol.sample_encoding import encode_samples
from innoscope.daemon.sensor.main import Sensor, SensorSettings
from innoscope.memory.locks import layout as locks
from innoscope.memory.locks import sessions
from innoscope.memory.locks.layout import ProcessMemory
from innoscope.memory.statements.attribution import Attribution
from innoscope.memory.statements.source import open_blockers
from innoscope.sampling.engine import Engine
from innoscope.sampling.profile_history import ClassifiedStack
from innoscope.sampling.sessions import files
from innoscope.sampling.sessions.buffer import SampleBuffer, is_busy
from innoscope.sampling.sessions.store import HistoryLimits, HistoryStore
from innoscope.sampling.snapshot_history import CLIENT
from innoscope.target import discover
from innoscope.target.proc import ProcFs
from live.statement_mix import SINCE_8, statements
from safety.fake_server import FORMS, PLUGINS
from safety.fake_server import greeting as fake_greeting
from safety.hostile_elf import nested_namespaces
from servers import NAMES, Server, fetch
from unit.session_samples import START, batch, shape
from workloads import RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.sampling.sessions.model import Batch

_HERE: Final = Path(__file__).resolve().parent
_TREE: Final = _HERE.parents[1]
#: Plugins up to this size in bytes become seeds as whole ELF files.
_MAX_WHOLE: Final = 48 << 10
_MOST_WHOLE: Final = 20
_MOST_NAMES: Final = 300
#: Registers, a replaced return address and a stack. A seed for `unwind` is an ELF file followed by this tail.
_TAIL: Final = bytes(range(256)) * 3
_SERVER: Final = "mysql-5.6.24"
_WAITERS: Final = 3
#: The tables of a history, in the order of tests/fuzz/rust/targets/history.rs.
_TABLES: Final = ("samples", "snapshots", "stacks", "digests")


def make(folder: Path) -> None:
    """Write the seeds of each target to a directory in ``folder``; this starts a server for a few seconds."""
    for target, data in _all():
        corpus = folder / target
        corpus.mkdir(parents=True, exist_ok=True)
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


def _all() -> Iterator[tuple[str, bytes]]:
    for path in (fetch(name).mysqld for name in NAMES):
        for image in elf_seeds.of_file(path):
            yield "elf", image
            yield "unwind", image + _TAIL[: RUST["unwind"] - len(image)]
        for name in _names(path):
            yield "demangle", name.encode()
    for path in _plugins():
        image = path.read_bytes()
        yield "elf", image
        yield "unwind", image[: RUST["unwind"] - len(_TAIL)] + _TAIL
    yield from _with_debug_information()
    yield "dwarf", nested_namespaces(100, 1_000)
    yield from _of_a_running_server()
    for number, (name, _) in enumerate(LOADERS):
        if (path := catalog_path(name)).exists():
            yield "catalogs", bytes([number]) + path.read_bytes()
    yield "catalogs", bytes([_loader("agent.toml")]) + (_TREE / "packaging/agent.toml").read_bytes()
    yield "catalogs", bytes([_loader("web.yaml")]) + b"basic_auth_users:\n  a: $2y$10$" + b"x" * 53 + b"\n"
    yield from (("digest", seed) for seed in _statements())
    yield from document_seeds.fixed()
    for request in _requests():
        yield "http", request
    for plugin in PLUGINS:
        for form in FORMS:
            yield "greeting", fake_greeting(plugin, form, tls=True)


def _loader(name: str) -> int:
    return [one for one, _ in LOADERS].index(name)


def _plugins() -> list[Path]:
    """Return some of the small plugins of all servers, evenly spaced in the sorted list."""
    found = {path for name in NAMES for path in fetch(name).home.rglob("plugin/*.so")}
    small = [path for path in found if path.stat().st_size <= _MAX_WHOLE]
    elves = [path for path in sorted(small) if path.read_bytes()[:4] == b"\x7fELF"]
    return elves[:: max(1, len(elves) // _MOST_WHOLE)]


def _names(path: Path) -> list[str]:
    """Return mangled names, without ``_Z``, from evenly spaced entries of the dynamic symbol table."""
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        if not isinstance(table, SymbolTableSection):
            return []
        count = table.num_symbols()
        every = (table.get_symbol(index).name for index in range(0, count, max(1, count // _MOST_NAMES)))
        return [name.removeprefix("_Z") for name in every if name.startswith("_Z")]


def _with_debug_information() -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "declared")
        for options in (("-gdwarf-4",), ("-gdwarf-5",), ("-gdwarf-5", "-gz=zlib")):
            subprocess.run(["g++", "-O1", *options, "-o", made, _HERE / "declared.cpp"], check=True)
            yield "dwarf", made.read_bytes()
        pack = Path(folder, "one.pack")
        _innoscope("symbols", "export", "--file", str(made), "--server", "mysql 9.7.4", "-o", str(pack))
        yield "pack", b"\0" + pack.read_bytes()
        yield "pack", b"\1" + _native.pack_payload(str(made), b"{}", b"{}")


def _of_a_running_server() -> Iterator[tuple[str, bytes]]:
    with Server(_SERVER) as server, tempfile.TemporaryDirectory() as folder:
        incident = Path(folder, "one.incident")
        _innoscope("diagnose", "--pid", str(server.pid), "--seconds", "2", "--save", str(incident))
        saved = incident.read_bytes()
        yield "incident", b"\0" + saved
        yield "incident", b"\xff" + gzip.decompress(saved)
        yield "sensor", json_bytes(_reply(server.pid))
        yield from document_seeds.of_a_server(server)
    yield "samples", json_bytes(encode_samples(batch(START)))
    yield from _of_a_convoy()


def _of_a_convoy() -> Iterator[tuple[str, bytes]]:
    """Yield connections, samples and files of a server on which connections are waiting for a row lock."""
    with Server(_SERVER) as server, RowLock(server, _WAITERS):
        target = discover.identify(ProcFs(), server.pid)
        blockers = open_blockers(target)
        attribution = Attribution(target, Engine(target), 0, blockers=blockers)
        buffer = SampleBuffer()
        for second in range(2):
            threads = attribution.take_snapshot().threads
            busy = [
                (CLIENT, ClassifiedStack.of(one.wait, one.trust, one.frames), one)
                for one in threads
                if is_busy(one)
            ]
            buffer.add(START + second, 1.0, busy)
        part = locks.learn(target).sessions
        if part is None:
            raise RuntimeError("the layout of the server is not known")
        tids = {one.ns_tid for one in threads}
        connections = sessions.read(ProcessMemory(server.pid), part, tids)[:_WAITERS]
    for kind in range(TICKETS_UNIT * len(TICKETS)):
        content = seed(kind, connections, (b"root", b"shop"))
        if not kind & (SHORT_IDS | INDIRECT_NAMES):
            yield "locks", content
        if kind < QUEUES:
            yield "statements", content
    _, sampled = buffer.since(0)
    yield "samples", json_bytes(encode_samples(sampled))
    yield from _history(sampled)
    yield from _history(batch(START, range(10, 40), 1.0, shape(), shape("on_cpu", None)))


def _history(sampled: Batch) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a history."""
    with tempfile.TemporaryDirectory() as folder:
        store = HistoryStore(Path(folder), HistoryLimits())
        store.prepare()
        store.add("3306", sampled)
        store.close()
        for part in files.live_parts(Path(folder)):
            for number, table in enumerate(_TABLES):
                yield "history", bytes([number]) + part.file(table).read_bytes()


def _innoscope(*arguments: str) -> None:
    command = [sys.executable, "-m", "innoscope.cli.main", *arguments]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)


def _reply(pid: int) -> object:
    """Return a sensor's reply about one server."""
    target = discover.identify(ProcFs(), pid)
    samples = (Sample("mysqld_up", 1), Sample("fsync_seconds", Histogram((0, 2, 1), 77), ("redo",)))
    one = messages.ServerReply("3306", target, (Outcome("process", True, 0.0, samples),))
    return Sensor(SensorSettings()).collect() | messages.encode_servers([one])


def _statements() -> Iterator[bytes]:
    for number, statement in enumerate([*statements(), *SINCE_8]):
        yield bytes([number & 3]) + statement.encode()


def _requests() -> Iterator[bytes]:
    for path in ("/metrics", "/", "/api/stacks?server=3306&from=1&to=2"):
        yield f"GET {path} HTTP/1.1\r\nHost: localhost:9977\r\nAccept: text/plain\r\n\r\n".encode()
    yield b"HEAD / HTTP/1.0\r\n\r\n"
    yield b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nAuthorization: Basic YTpi\r\n\r\n"
