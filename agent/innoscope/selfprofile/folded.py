"""py-spy's folded stacks: ``function (file:line);… count`` a line, root first; and what follows from them."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from innoscope.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Stacks = dict[tuple[str, ...], int]

_FRAME: Final = re.compile(r"(?P<name>.*) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)")


@record
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


def table(stacks: Mapping[tuple[str, ...], int], limit: int) -> Iterator[str]:
    """Lines for a person: the functions that ran most themselves."""
    samples = sum(stacks.values())
    yield "   own   total  function"
    for one in functions(stacks)[:limit]:
        yield f"{one.own / samples:6.1%}  {one.total / samples:6.1%}  {one.name}"


def _without_line(frame: str) -> str:
    match = _FRAME.fullmatch(frame)
    return f"{match['name']} ({match['file']})" if match else frame
