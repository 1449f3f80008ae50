"""Find the documentation's examples, run them on a real server, and compare the output with the page.

docs/contributing.md lists the rules for examples.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import click

from innoscope.cli.main import cli
from innoscope.cli.parameters import Duration
from live.staging import LOADS
from servers import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: The default server of an example.
SERVER: Final = "mysql-5.6.24"
#: Maximum seconds that the option for the duration may have in an example, and its value if it is omitted.
MOST_SECONDS: Final = 2
#: Name of a special workload: an agent and its sensor, with a client that keeps requesting pages.
AGENT: Final = "agent"

_FENCE: Final = re.compile(
    r"^(?:<!-- example:(?P<scene>[^>]*)-->\n)?```console\n(?P<body>.*?)^```$", re.M | re.S
)
_PROMPT: Final = "$ "
#: Options that set the duration of a command.
_LASTING: Final = ("--seconds", "--duration")
#: A duration as an argument, as in `innoscope latency 2s`.
_DURATION: Final = re.compile(r"\d+[smh]")
_LONG_NAMES: Final = {"-p": "--pid", "-S": "--socket", "-P": "--port", "-s": "--seconds"}
_UNIT: Final = r"(?: ?(?:%|(?:ns|µs|ms|s|min|h|B|KiB|MiB|GiB|kB|MB|GB)\b))?"
_NUMBER: Final = r"\d[\d,.]*" + _UNIT
_PATH: Final = r"(?:/[\w.+-]+){2,}"
#: The number of complete stacks. It may be followed by the number of threads that happen to be on a CPU.
_EXACT: Final = r"\d[\d,]* exact\b"
_PIECES: Final = re.compile(
    rf"(?P<any>[,\s]*…[,\s]*)|(?P<path>{_PATH})|(?P<exact>{_EXACT})|(?P<number>{_NUMBER})|(?P<gap>\s+)"
)
_SAME_KIND: Final = {
    "any": ".*",
    "path": r"\S+",
    "exact": rf"{_EXACT}(?:, \d[\d,]* on-cpu)?",
    "number": _NUMBER,
    "gap": r"\s+",
}


@dataclass(frozen=True)
class Scene:
    """The server of an example and its loads, each as ``(workload, connections)``."""

    server: str = SERVER
    loads: tuple[tuple[str, int], ...] = ()

    @property
    def agent(self) -> bool:
        return AGENT in dict(self.loads)


@dataclass(frozen=True)
class Example:
    """One command of a page, the output shown below it, and the expected exit code."""

    place: str  # page:line
    scene: Scene
    command: str
    shown: tuple[str, ...]
    code: int


def examples(page: Path) -> Iterator[Example]:
    """Yield all examples of a page in order. Raise ValueError if a block is malformed."""
    text = page.read_text()
    for block in _FENCE.finditer(text):
        line = text.count("\n", 0, block.start("body")) + 1
        scene, code = _scene(block["scene"] or "", f"{page.name}:{line}")
        yield from _commands(block["body"].splitlines(), f"{page.name}", line, scene, code)


def _scene(words: str, place: str) -> tuple[Scene, int]:
    """Parse ``SERVER WORKLOAD=N … exit=CODE``. Each part is optional. Raise ValueError for other words."""
    server, code, loads = SERVER, 0, []
    for word in words.split():
        name, _, value = word.partition("=")
        if name in NAMES:
            server = name
        elif name == "exit":
            code = int(value)
        elif name in LOADS or name == AGENT:
            loads.append((name, int(value or 4)))
        else:
            raise ValueError(f"{place}: {word!r} is not a server, a workload or an exit code")
    return Scene(server, tuple(loads)), code


def _commands(lines: list[str], page: str, first: int, scene: Scene, code: int) -> Iterator[Example]:
    starts = [number for number, line in enumerate(lines) if line.startswith(_PROMPT)]
    if not starts or starts[0] != 0:
        raise ValueError(f"{page}:{first}: a console block begins with {_PROMPT!r} and a command")
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        shown = tuple(lines[start + 1 : end])
        place = f"{page}:{first + start}"
        yield Example(place, scene, lines[start].removeprefix(_PROMPT), shown, code)


@dataclass(frozen=True)
class There:
    """The values of this run that replace the values in an example's command."""

    pid: int
    socket: str
    port: int
    executable: str
    packs: str = ""
    agent_pid: int | None = None
    sensor_pid: int | None = None


def placed(command: str, there: There) -> str:
    """Adapt an example's command to the test server of this run.

    Raise ValueError if the command does not run ``innoscope``, or if Innoscope has no such command.
    """
    first, bar, rest = command.partition(" | ")
    words = shlex.split(first, comments=True)
    if words[:1] == ["sudo"]:
        words = words[1:]
    if words[:1] != ["innoscope"]:
        raise ValueError(f"not an innoscope command: {command}")
    words = [_file(word, there) for word in words]
    if words[1] == "diagnose" and len(words) > 2 and not words[2].startswith("-"):
        return shlex.join(words) + bar + rest  # an incident file needs no server
    found = _resolve(words[1:])
    options = {name for option in found.params for name in option.opts}
    pid: int | None = there.pid
    if words[1:2] == ["self-profile"]:
        pid = there.sensor_pid if "--sensor" in words else there.agent_pid
        words = [word for word in words if word != "--sensor"]
    stands_for = {"--pid": str(pid), "--socket": there.socket, "--port": str(there.port)}
    words = [_LONG_NAMES.get(word, word) for word in words]
    given = set(words)
    words = _replaced(words, stands_for)
    if "--pid" in options and not given & {*stands_for}:
        words += ["--pid", stands_for["--pid"]]
    has_argument = any(
        _DURATION.fullmatch(word) and not before.startswith("-") for before, word in pairwise(words)
    )
    if (lasting := options & {*_LASTING}) and not given & {*_LASTING} and not has_argument:
        words += [max(lasting), str(MOST_SECONDS)]
    return shlex.join(words) + bar + rest


def _file(word: str, there: There) -> str:
    if re.search(r"bin/(mysqld|mariadbd)$", word):
        return there.executable
    return word.replace("/etc/innoscope/symbols.d", there.packs)


def _replaced(words: list[str], stands_for: dict[str, str]) -> list[str]:
    """Replace the server in the page's command with the test server, and shorten durations."""
    placed = list(words)
    for place, word in enumerate(words[:-1]):
        if word in stands_for:
            placed[place + 1] = stands_for[word]
        elif word in _LASTING:
            seconds = Duration().convert(words[place + 1], None, None)
            placed[place + 1] = f"{min(MOST_SECONDS, seconds):g}"
    return placed


def _resolve(words: list[str]) -> click.Command:
    """Return the click command that a command line invokes. Raise ValueError if there is none."""
    found: click.Command = cli
    for word in words:
        if not isinstance(found, click.Group):
            break
        if not word.startswith("-"):
            next_one = found.get_command(click.Context(found), word)
            if next_one is None:
                raise ValueError(f"there is no command {word!r} in: innoscope {' '.join(words)}")
            found = next_one
    return found


def difference(shown: tuple[str, ...], real: str) -> str | None:
    """Return the first relevant line of the page that is missing from the real output; None if all occur.

    The relevant lines are the first lines of the paragraphs. The output must contain them in the same order,
    and must begin with the first of them.
    """
    heads = [
        line for before, line in zip(("", *shown), shown, strict=False) if line.strip() and not before.strip()
    ]
    lines = [line for line in real.splitlines() if line.strip()]
    for number, head in enumerate(heads):
        like = re.compile(pattern(head))
        reach = lines[:1] if number == 0 else lines
        place = next((at for at, line in enumerate(reach) if like.fullmatch(line.strip())), None)
        if place is None:
            return head
        lines = lines[place + 1 :]
    return None


def pattern(line: str) -> str:
    """Turn a line of a page into a pattern that accepts other numbers and paths, and any text for ``…``."""
    made, end = [], 0
    text = line.strip()
    for piece in _PIECES.finditer(text):
        made += [re.escape(text[end : piece.start()]), _SAME_KIND[str(piece.lastgroup)]]
        end = piece.end()
    return "".join([*made, re.escape(text[end:])])
