"""Test that no command lets a hostile server, file or argument control the user's terminal."""

from __future__ import annotations

import gzip
import json
import os
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import click
import pytest

from fake_agent import FakeAgent
from innoscope.cli import main
from innoscope.common.errors import ExitCode
from innoscope.sampling.sessions.model import Batch, Sampled, SharedValues
from innoscope.sampling.sessions.store import HistoryLimits, HistoryStore
from safety.command import innoscope
from safety.hostile import EVIL, SHOWN, HostileServer
from safety.terminal import (
    KEYS,
    run_on_terminal,
    sequences,
    violations,
    without,
    without_colors,
)
from scale import chosen, count, long

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from _pytest.mark import ParameterSet

evil = os.fsdecode(EVIL)
COLOR: dict[str, str] = {}
NO_COLOR = {"NO_COLOR": "1"}
#: Commands that the quick suite also runs without colors. Together they cover all of emit.py.
_UNCOLORED = ("stacks", "doctor", "diff", "toggle plan")
_STALL = "stall-mysql-1-20260101T000000Z.innoscope"


class Scene(NamedTuple):
    """Input and output of the commands.

    ``files`` is a directory of hostile files, ``out`` a writable directory.
    """

    server: HostileServer
    refusing: HostileServer
    files: Path
    out: Path
    agent: FakeAgent

    @property
    def pid(self) -> str:
        return str(self.server.pid)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("escapes")
    files, out = folder / evil, folder / f"out{evil}"
    files.mkdir()
    out.mkdir()
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name in ("INNOSCOPE_STATE", "INNOSCOPE_RUN", "INNOSCOPE_SYMBOLS"):
            patch.setenv(name, str(folder / f"{name}{evil}"))
        patch.delenv("DEBUGINFOD_URLS", raising=False)
        server = stack.enter_context(HostileServer())
        refusing = stack.enter_context(HostileServer("errors"))
        agent = stack.enter_context(FakeAgent({"incidents": [_hostile_row()]}, {}))
        known_screen = Scene(server, refusing, files, out, agent)
        _write_files(known_screen)
        agent.contents[_STALL] = (files / "forged.innoscope").read_bytes()
        yield known_screen


def _hostile_row() -> dict[str, object]:
    """Return an entry of a hostile agent's list of incidents. Entries with another file name are ignored."""
    names = dict.fromkeys(("server", "trigger", "finding", "title", "blocker"), EVIL.decode(errors="replace"))
    return {"file": _STALL, "at": time.time(), "bytes": 1, "score": 1.0, **names}


def _write_files(scene: Scene) -> None:
    """Make Innoscope's commands write files about the hostile server, and add forged files."""
    pid, files, server = scene.pid, scene.files, scene.server.folder / "mysqld"
    for command in (
        ("stacks", "-p", pid, "--json", "-q", "-o", files / "dump.json"),
        ("stacks", "-p", pid, "--json", "--count", 2, "--interval", 0.05, "-o", files / "dumps.json"),
        ("top", "-p", pid, "--record", files / "top.rec", "--duration", 1),
        ("diagnose", "-p", pid, "--seconds", 1, "--save", files / "seen.innoscope"),
        ("symbols", "export", "--file", server, "-o", files / "mysqld.pack"),
        ("symbols", "export", "--file", server, "-o", f"{os.environ['INNOSCOPE_SYMBOLS']}/"),
    ):  # fmt: skip
        done = innoscope(*command)
        # On a busy host, the hostile server may also wait for a CPU, which diagnose reports.
        assert done.returncode in (ExitCode.SUCCESS, ExitCode.FOUND, ExitCode.CANNOT_TELL), done.stderr
    incident = json.loads(gzip.decompress((files / "seen.innoscope").read_bytes()))
    incident["capture"]["trigger"] = evil
    (files / "forged.innoscope").write_bytes(gzip.compress(json.dumps(incident).encode()))
    record = (files / "top.rec").read_bytes()
    (files / "forged.rec").write_bytes(record.replace(b'"other"', json.dumps(evil).encode()))
    (files / "garbage").write_bytes(EVIL * 100)
    _write_history(files / "history")
    (files / "agent.toml").write_text(
        f'[sql]\ndefaults_file = "/{_toml}"\n[web]\nlisten_address = "{_toml}"\n'
    )


def _write_history(folder: Path) -> None:
    """Write a history in which all names are hostile."""
    name = EVIL.decode(errors="replace")
    now = int(time.time() * 1e6)
    store = HistoryStore(folder, HistoryLimits())
    store.prepare()
    hostile = SharedValues(
        "connection", name, name, "0" * 32, name, name, name, None, name, name, (name, name)
    )
    store.add(name, Batch([hostile], [Sampled(now, 1.0, [1], [0], [1], [None])], {"0" * 32: name}))
    store.close()


_toml = "".join(f"\\U{ord(letter):08x}" for letter in evil if letter < "\ud800")


class Run(NamedTuple):
    """A command's arguments with placeholders such as ``{pid}``, and options of ``run_on_terminal``."""

    arguments: tuple[str, ...]
    typing: tuple[tuple[bytes, bytes], ...] = ()
    until: bytes | None = None


def run(*arguments: str, typing: Sequence[tuple[bytes, bytes]] = (), until: bytes | None = None) -> Run:
    return Run(arguments, tuple(typing), until)


def full_suite_only(*runs: Run) -> list[Run]:
    """Return the given runs in the full suite, and none in the quick suite. Use this for slow variants."""
    return [*runs] if chosen.full else []


_SAVED = "{files}/seen.innoscope"
_P = ("-p", "{pid}")
_A = ("-a", "{agent}")
_SENSOR = ("--sensor-socket", "{out}/sensor")
_REFUSING = ("-p", "{refusing}")
#: The runs of each command. test_every_command_is_run fails if a command is missing here.
RUNS: dict[str, list[Run]] = {
    "targets": [run(), run("--json")],
    "symbols export": [
        run(*_P, "--server", evil, "-o", "{out}/a.pack"),
        run("--file", "{files}/garbage"),
        run("--file", f"{{files}}/{evil}"),
        run(*_P, "-o", "{out}/b.pack", "--json"),
    ],
    "symbols show": [
        run("{files}/mysqld.pack"),
        run("{files}/mysqld.pack", "--json"),
        run("{files}/garbage"),
    ],
    "symbols list": [run(), run("--json")],
    "symbols check": [
        run("{files}/mysqld.pack", *_P),
        run("{files}/garbage"),
        run("{files}/mysqld.pack", "--json"),
    ],
    "doctor": [
        run(*_P),
        run(*_P, "--json"),
        run(*_REFUSING),
        run("--socket", evil),
        run("--socket", "{socket}"),
    ],
    "diagnose": [
        run(*_P, "--seconds", "3"),
        run(*_P, "--seconds", "1", "--json"),
        *full_suite_only(
            run(*_REFUSING, "--seconds", "1"), run(*_P, "--seconds", "1", "--save", "{out}/b.innoscope")
        ),
        run(_SAVED),
        run(_SAVED, "--json"),
        run("{files}/forged.innoscope"),
        run("{files}/garbage"),
        *(run(_SAVED, "--show", part) for part in ("stacks", "folded", "metrics", "status", "variables")),
        run(f"{{files}}/{evil}"),
    ],
    "diff": [
        run("{files}/dump.json", "{files}/dumps.json"),
        run("{files}/dump.json", _SAVED, "--json"),
        run("{files}/garbage", _SAVED),
        run(_SAVED),
        run("{files}/top.rec", "{files}/forged.rec"),
    ],
    "watch": [
        run(*_P, "--list"),
        run(*_P, "--list", "--json"),
        run(*_P, "--trigger", evil),
        run(
            *_P,
            "--trigger",
            "threads_busy>=0",
            "--for",
            "0",
            "--seconds",
            "1",
            "--before",
            "0",
            "--once",
            "--dir",
            "{out}",
        ),
        *full_suite_only(
            run(
                *_REFUSING,
                "--trigger",
                "threads_busy>=0",
                "--for",
                "0",
                "--seconds",
                "1",
                "--once",
                "--dir",
                "{out}",
                "--json",
            )
        ),
    ],
    "stacks": [
        *(run(*_P, "-q", "--all", "--full", "--by", by) for by in ("stack", "wait", "thread")),
        *(run(*_P, "-q", "--format", form) for form in ("tree", "folded", "json", "speedscope", "html")),
        *(
            run(*_P, "-q", "--format", form, "-o", f"{{out}}/{form}")
            for form in ("text", "folded", "json", "html")
        ),
        run(*_REFUSING, "-q"),
        run(*_P, "--grep", f"({evil}"),
        run(*_P, "--wait", evil),
        run(*_P, "--count", "3", "--interval", "1.2"),
    ],
    "probes list": [run(*_P), run(*_P, "--json"), run(*_P, "--family", evil)],
    "probes measure": [
        run(*_P, "--seconds", "2.5"),
        run(*_P, "--seconds", "0.2", "--json"),
        run("--socket", evil),
    ],
    "probes status": [run("--sensor-socket", evil), run("--sensor-socket", evil, "--json")],
    "profile": [
        run(*_P, "--seconds", "1"),
        run(*_P, "--seconds", "3", "--off-cpu"),
        *full_suite_only(
            *(
                run(*_P, "--seconds", "1", "--off-cpu", "--format", form)
                for form in ("tree", "folded", "json", "html")
            )
        ),
    ],
    "latency": [run("1s", *_P), run("1s", *_P, "--json"), run(evil, *_P)],
    "trace": [
        run("do_command", *_P, "--seconds", "2"),
        run(evil, *_P),
        run("do_command", *_P, "--seconds", "0.3", "--json"),
        run("recv", *_P, "--seconds", "0.3", "--callers", "--format", "folded"),
    ],
    "top": [run(*_P, typing=KEYS), *full_suite_only(run(*_REFUSING, typing=KEYS)), run("--socket", evil)],
    "replay": [
        *full_suite_only(run("{files}/top.rec", typing=KEYS)),
        run("{files}/forged.rec", typing=KEYS),
        run("{files}/top.rec", "--summary"),
        run("{files}/forged.rec", "--summary", "--at", "+0"),
        run("{files}/garbage"),
        run("{files}/top.rec", "--at", evil),
    ],
    "history report": [
        run("--dir", "{files}/history", "--by", "user,wait,stack,digest"),
        run("--dir", "{files}/history", "--by", "user,wait,stack,digest", "--json"),
        run("--dir", "{files}/history", "--flame", "{out}/flame.svg"),
        run("--dir", "{files}"),
        run("--by", evil),
        run("--where", evil),
        run("--dir", "{files}/history", "--server", evil),
    ],
    "history sql": [run("--dir", "{files}/history", f"SELECT '{evil}'"), run(evil, "--dir", "{files}")],
    "incidents list": [run(*_A), run(*_A, "--json"), run("-a", evil), run("--agents", "{files}/garbage")],
    "incidents fetch": [run(*_A, "--dir", "{out}/fetched"), run(*_A, evil, "--dir", "{out}/fetched")],
    "incidents open": [run(*_A, "--dir", "{out}/opened"), run(*_A, evil, "--dir", "{out}/opened")],
    "toggle list": [run(*_P), run(*_P, "--json"), run(*_REFUSING)],
    "toggle show": [run("spin_rounds", *_P), run("spin_rounds", *_P, "--json"), run(evil, *_P)],
    "toggle plan": [
        run("read_ahead", "off", *_P),
        run("read_ahead", "off", *_P, "--json"),
        run("read_ahead", evil, *_P),
        run("read_ahead", "off", *_REFUSING),
    ],
    "toggle set": [
        run("read_ahead", "off", *_P, "--why", evil, typing=[(b"?", b"n\n")]),
        run("read_ahead", "off", *_P, "--why", evil, "--yes"),
        run("read_ahead", "off", *_P, "--yes", "--json"),
    ],
    "toggle undo": [run(*_P), run(evil, *_P), run("read_ahead", *_P, "--json")],
    "toggle history": [run(), run("--json"), run(*_P)],
    "unstick": [run(*_P), run(*_P, "--json"), run("--socket", evil)],
    "self-profile": [run(*_P), run("--pid", evil), run("--output", f"/nonexistent/{evil}")],
    "agent": [
        run("--check", "--config.file", "{files}/agent.toml"),
        run("--check", "--config.file", "{files}/garbage"),
        run("--check", "--web.listen-address", evil),
        run("--defaults-file", evil, "--check"),
        run(
            "--web.listen-address",
            "127.0.0.1:0",
            "--sensor-socket",
            "{out}/agents",
            "--log-level",
            "debug",
            until=b"sensor listens",
        ),
    ],
    "sensor": [
        run(*_SENSOR, "--log-level", "debug", "--no-probes", until=b"sensor listens"),
        run(*_SENSOR, "--log-format", "json", "--family", evil, until=b"sensor listens"),
        run("--group", evil, *_SENSOR),
    ],
}


def commands() -> Iterator[str]:
    """Yield the names of all commands, such as ``stacks`` or, in a group, ``toggle set``."""
    context = click.Context(main.cli)
    for name in main.cli.list_commands(context):
        command = main.cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from (f"{name} {below}" for below in command.list_commands(context))
        else:
            yield name


def test_every_command_is_run() -> None:
    assert set(RUNS) == set(commands())


def _filled(arguments: tuple[str, ...], scene: Scene) -> list[str]:
    values = {
        "{pid}": scene.pid, "{refusing}": str(scene.refusing.pid), "{files}": str(scene.files),
        "{out}": str(scene.out), "{socket}": str(scene.server.socket),
        "{agent}": scene.agent.url,
    }  # fmt: skip
    filled = list(arguments)
    for name, value in values.items():
        filled = [argument.replace(name, value) for argument in filled]
    return filled


@pytest.fixture(scope="module")
def screen(scene: Scene) -> Callable[[dict[str, str]], set[str]]:
    """Return a function that runs ``top`` on a harmless server and returns the escape sequences it writes."""
    screens: dict[str, set[str]] = {}

    def known_screen(environment: dict[str, str]) -> set[str]:
        key = json.dumps(environment)
        if key not in screens:
            with HostileServer(benign=True) as harmless:
                screens[key] = sequences(
                    run_on_terminal(["top", "-p", str(harmless.pid)], environment, typing=KEYS)
                )
        return screens[key]

    return known_screen


def _with_and_without_colors() -> Iterator[ParameterSet]:
    """Yield each command with colors and without."""
    for command in RUNS:
        yield pytest.param(command, COLOR, id=f"{command}-color")
        marks = () if command in _UNCOLORED else long("runs with colors in make test")
        yield pytest.param(command, NO_COLOR, id=f"{command}-no-color", marks=marks)


@pytest.mark.parametrize(("command", "environment"), list(_with_and_without_colors()))
def test_commands_print_no_control_characters_of_others(
    scene: Scene, screen: Callable[[dict[str, str]], set[str]], command: str, environment: dict[str, str]
) -> None:
    shown = ""
    for each in RUNS[command]:
        arguments = [*command.split(), *_filled(each.arguments, scene)]
        output = run_on_terminal(arguments, environment, typing=each.typing, until=each.until)

        drawn = each.typing == KEYS
        if drawn:
            found = violations(output, without(screen(environment)))
        elif environment:
            found = violations(output)
        else:
            found = violations(output, without_colors)
        assert not found, (arguments, found, output[-3000:])
        assert b"Traceback" not in output, output[-3000:].decode(errors="replace")
        shown += output.decode()
    assert any(text in shown for text in SHOWN), "nothing hostile reached the terminal"


@pytest.mark.parametrize("command", list(commands()))
def test_usage_errors_escape_the_arguments(scene: Scene, command: str) -> None:
    del scene
    wrong = [f"--{evil}"], [evil, evil, evil, evil], ["--debug", evil], ["--help"]
    for arguments in wrong[: count(quick=2, full=4)]:
        output = run_on_terminal([*command.split(), *arguments], {})

        assert not violations(output, without_colors), (arguments, output)


def test_errors_of_the_top_level_command_escape_the_arguments(scene: Scene) -> None:
    del scene
    for arguments in ([evil], [f"--{evil}"], ["--debug", "stacks", "--socket", evil], ["--version", evil]):
        assert not violations(run_on_terminal(arguments, {}), without_colors), arguments


def test_unstick_escapes_the_names_of_a_stopped_server(scene: Scene) -> None:
    os.kill(scene.server.pid, signal.SIGSTOP)
    try:
        output = run_on_terminal(["unstick", *_P[:1], scene.pid], {})
    finally:
        os.kill(scene.server.pid, signal.SIGCONT)

    assert not violations(output, without_colors), output
    assert b"running and not traced" in output


@pytest.mark.parametrize("form", ["text", "tree", "folded", "json", "speedscope", "html"])
def test_output_files_have_no_control_characters_either(scene: Scene, form: str) -> None:
    file = scene.out / f"file.{form}"
    done = innoscope("stacks", "-p", scene.pid, "-q", "--format", form, "-o", file)

    assert done.returncode == 0, done.stderr
    assert not violations(file.read_bytes())
    assert any(text in file.read_text() for text in SHOWN)


def test_violations_are_detected() -> None:
    for text in (
        b"\x1b[2J",
        b"\x9b",
        "\u202e".encode(),
        b"\r",
        b"\x07",
        b"\t",
        b"\x1b[38;5;201m",
        b"\x7f",
        b"\xff",
    ):
        assert violations(b"a" + text + b"b"), text
    assert not violations("Ä\r\n\r\x1b[Kb".encode())
    assert violations(b"\x1b[2Ja", without({"\x1b[3J"}))
    red = b"\x1b[31ma\x1b[0m\n"
    assert violations(red)
    assert not violations(b"looking\r\x1b[K" + red, without_colors)
    for text in (b"a" + red, b"\x1b[31ma\n", b"\x1b[41ma\x1b[0m\n", b"\x1b[31m\x1b[2J\x1b[0m\n"):
        assert violations(text, without_colors), text
    assert not violations(b"\x1b[2Ja\x1b[1;2H", without({"\x1b[2J"}))
