"""What toggles are set to now: one connection and one look at the symbols for all; nothing is written."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from innoscope.common.errors import InnoscopeError
from innoscope.toggles import catalog
from innoscope.toggles.backends.sql import NoLogin
from innoscope.toggles.dependencies import Means
from innoscope.toggles.model import Learner, NotOnThisServer, Setting, Way

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from innoscope.target.credentials import Account
    from innoscope.target.model import Target
    from innoscope.toggles.model import Generation, Toggle, Writer


@dataclass(frozen=True, slots=True)
class _Question:
    """Where a toggle's value can be read."""

    toggle: Toggle
    way: Way


def values(
    target: Target, toggles: Iterable[Toggle], account: Account, *, means: Means | None = None
) -> dict[str, str]:
    """The values now, as a person says them, by the toggles' names; memory is read where SQL does not answer.

    A toggle that is not on this server and one that no way can tell have no value.
    """
    means = means or Means()
    questions = [question for toggle in toggles for question in _questions(toggle, target)]
    found: dict[str, str] = {}
    for kind in ("sql", "memory"):
        left = [one for one in questions if one.way.kind == kind and one.toggle.name not in found]
        if left:
            found = _answers(kind, left, target, account, means) | found
    return found


def _questions(toggle: Toggle, target: Target) -> Iterator[_Question]:
    try:
        generation = catalog.generation(toggle, target.flavour, target.version)
    except NotOnThisServer:
        return
    for way in _readable(generation):
        yield _Question(toggle, way)


def _readable(generation: Generation) -> Iterator[Way]:
    """Yield the ways to read by, and SQL's variables that show what only memory can change."""
    for way in generation.ways:
        if way.kind in generation.never:
            continue
        yield way
        shown = [one.setting.variable for one in way.assignments]
        if way.kind == "memory" and all(shown):
            assignments = zip(way.assignments, shown, strict=True)
            yield Way("sql", tuple(replace(one, setting=Setting(str(name))) for one, name in assignments))


def _answers(
    kind: str, questions: Sequence[_Question], target: Target, account: Account, means: Means
) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        with closing(means.writer(kind, target, account)) as writer:
            if isinstance(writer, Learner):
                writer.learn([one.way for one in questions])
            for one in questions:
                if one.toggle.name not in found and (said := _answer(writer, one)) is not None:
                    found[one.toggle.name] = said
    except InnoscopeError:
        pass  # what it has not told, another way may
    return found


def _answer(writer: Writer, question: _Question) -> str | None:
    """The value; None where this one cannot be told. Raises NoLogin: then none can."""
    way = question.way
    try:
        steps = writer.prepare(way, [None] * len(way.assignments))
    except NoLogin:
        raise
    except InnoscopeError:
        return None
    return catalog.spoken(way, question.toggle, [step.old for step in steps])
