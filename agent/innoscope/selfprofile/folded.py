"""py-spy's folded stacks: ``function (file:line);… count`` a line, root first; and what follows from them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import innoscope

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Stacks = dict[tuple[str, ...], int]

_FRAME: Final = re.compile(r"(?P<name>.*) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)")
_RARE: Final = ("[rare stacks]",)


@dataclass(frozen=True, slots=True)
class Function:
    """Samples in which it ran itself, and in which it was anywhere on the stack."""

    name: str
    own: int
    total: int


def parse(raw: bytes) -> Stacks:
    """``{(root, …, leaf): samples}``. Lines that are not of that form are passed over."""
    stacks: Counter[tuple[str, ...]] = Counter()
    for line in raw.decode(errors="replace").splitlines():
        frames, _, count = line.rpartition(" ")
        if frames and count.isdecimal():
            stacks[tuple(frames.split(";"))] += int(count)
    return dict(stacks)


def functions(stacks: Mapping[tuple[str, ...], int]) -> list[Function]:
    """All functions, ``name (file)``, those that ran most themselves first."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for frames, count in stacks.items():
        names = [_without_line(frame) for frame in frames]
        own[names[-1]] += count
        for name in set(names):
            total[name] += count
    found = [Function(name, own[name], total[name]) for name in total]
    return sorted(found, key=lambda one: (-one.own, -one.total, one.name))


def most(stacks: Stacks, limit: int) -> Stacks:
    """At most ``limit`` stacks; the rarest become one of their own, so that the total stays true."""
    ordered = sorted(stacks.items(), key=lambda item: (-item[1], item[0]))
    if len(ordered) <= limit:
        return dict(ordered)
    kept = dict(ordered[: limit - 1])
    kept[_RARE] = sum(count for _, count in ordered[limit - 1 :])
    return kept


def speedscope(stacks: Mapping[tuple[str, ...], int], name: str) -> dict[str, Any]:
    """The file of speedscope.app as plain values; a weight is a number of samples."""
    table: dict[str, int] = {}
    samples = [[table.setdefault(frame, len(table)) for frame in frames] for frames in stacks]
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"innoscope@{innoscope.__version__}",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(text) for text in table]},
        "profiles": [
            {
                "type": "sampled", "name": name, "unit": "none", "startValue": 0,
                "endValue": sum(stacks.values()), "samples": samples, "weights": list(stacks.values()),
            }
        ],
    }  # fmt: skip


def table(stacks: Mapping[tuple[str, ...], int], limit: int) -> Iterator[str]:
    """Lines for a person: the functions that ran most themselves."""
    samples = sum(stacks.values())
    yield "   own   total  function"
    for one in functions(stacks)[:limit]:
        yield f"{one.own / samples:6.1%}  {one.total / samples:6.1%}  {one.name}"


def _without_line(frame: str) -> str:
    match = _FRAME.fullmatch(frame)
    return f"{match['name']} ({match['file']})" if match else frame


def _frame(text: str) -> dict[str, Any]:
    match = _FRAME.fullmatch(text)
    if match is None:
        return {"name": text}
    place = {"line": int(match["line"])} if match["line"] else {}
    return {"name": match["name"], "file": match["file"], **place}
