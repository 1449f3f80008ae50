"""Judges the triggers once a second, and takes a capture when one holds. No clock of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from innoscope.diagnose.incident.capture import captured
from innoscope.diagnose.signals import Signals
from innoscope.diagnose.unavailable import Unknown
from innoscope.diagnose.watch.triggers import shown, value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.incident.model import Capture
    from innoscope.diagnose.incident.server_facts import Fetched
    from innoscope.diagnose.sql_queries import Asked
    from innoscope.diagnose.verdict import Verdict
    from innoscope.diagnose.watch.triggers import Trigger

#: Share of a capture's time after which the server is asked who holds what.
_ASK_AFTER: Final = 0.3
#: Seconds that a rule may be without its number before that is said.
_PATIENCE_S: Final = 10.0
#: Between the minute before and the stall itself no look belongs to both.
_APART_S: Final = 1e-3


class Source(Protocol):
    """The recorder of one server: what was seen of it, and the server itself, to be asked."""

    def glance(self, begin: float, end: float) -> Evidence:
        """Numbers and looks of that time; who only counts needs no stacks."""

    def between(self, begin: float, end: float, asked: Asked | None = None) -> Evidence:
        """What was seen in that time (Unix)."""

    def begin(self) -> None:
        """A stall is being gathered from now on."""

    def ask(self) -> Asked:
        """Who holds what, as the server says."""

    def end(self) -> Fetched:
        """What is gathered of the stall is complete; what more the server told when it was asked."""


@dataclass(frozen=True, slots=True)
class Settings:
    """``for_s``: how long a rule must hold; ``seconds``: how long to go on gathering then.

    ``before_s`` is how much of the time before is put into the file; after a capture there is none for
    ``cooldown_s``.
    """

    triggers: tuple[Trigger, ...]
    for_s: float = 3.0
    seconds: float = 10.0
    before_s: float = 60.0
    cooldown_s: float = 300.0

    @property
    def span_s(self) -> float:
        """How much a recorder must keep."""
        most = max((trigger.window_s for trigger in self.triggers), default=0.0)
        return self.before_s + most + self.for_s + self.seconds + 5.0


@dataclass(frozen=True, slots=True)
class Triggered:
    """A rule has held for as long as it should, since that Unix time; ``number`` is what it saw."""

    trigger: Trigger
    number: float
    since: float


@dataclass(frozen=True, slots=True)
class Blind:
    """A rule cannot be judged at present."""

    trigger: Trigger
    words: str


@dataclass(frozen=True, slots=True)
class Stalled:
    """A capture is complete: what was seen from the beginning of the stall on, and before it."""

    trigger: Trigger
    number: float
    evidence: Evidence
    before: Evidence
    fetched: Fetched

    def capture(self) -> tuple[Capture, Verdict]:
        """For a file, and what is said of it."""
        words = f"{self.trigger.text} ({shown(self.number)})"
        return captured(self.evidence, self.fetched, before=self.before, trigger=words)


Event = Triggered | Blind | Stalled


class Watcher:
    """One server's. ``step`` is called about once a second."""

    def __init__(self, source: Source, settings: Settings, begun: float) -> None:
        self._source, self._settings = source, settings
        self._begun = begun
        self._since: dict[Trigger, float] = {}
        self._blind: dict[Trigger, str] = {}
        self._told_at: dict[Trigger, float] = {}
        self._stall: Triggered | None = None
        self._until = 0.0
        self._asked: Asked | None = None
        self._rests_until = 0.0

    @property
    def capturing(self) -> bool:
        """Whether a stall is being gathered."""
        return self._stall is not None

    def step(self, now: float) -> Iterator[Event]:
        """What has come of this second; ``now`` is Unix time."""
        if self._stall is not None:
            yield from self._go_on(self._stall, now)
        elif now >= self._rests_until:
            yield from self._judge(now)

    def _judge(self, now: float) -> Iterator[Event]:
        signals: dict[float, Signals] = {}
        for trigger in self._settings.triggers:
            window = trigger.window_s
            if window not in signals:
                signals[window] = Signals(self._source.glance(now - window, now))
            try:
                number = value(trigger.name, signals[window])
            except Unknown as error:
                self._since.pop(trigger, None)
                yield from self._untold(trigger, error.words, now)
                continue
            self._told_at[trigger] = now
            self._blind.pop(trigger, None)
            if not trigger.holds(number):
                self._since.pop(trigger, None)
            elif now - self._since.setdefault(trigger, now) >= self._settings.for_s:
                yield self._begin(Triggered(trigger, number, self._since[trigger] - window), now)
                return

    def _untold(self, trigger: Trigger, words: str, now: float) -> Iterator[Blind]:
        """Said once for each reason, and not of a look or two that a busy machine left out."""
        told_at = self._told_at.setdefault(trigger, self._begun)
        if now - told_at > _PATIENCE_S and self._blind.get(trigger) != words:
            self._blind[trigger] = words
            yield Blind(trigger, words)

    def _begin(self, stall: Triggered, now: float) -> Triggered:
        self._stall, self._until, self._asked = stall, now + self._settings.seconds, None
        self._since.clear()
        self._source.begin()
        return stall

    def _go_on(self, stall: Triggered, now: float) -> Iterator[Event]:
        if self._asked is None and now >= self._until - self._settings.seconds * (1 - _ASK_AFTER):
            self._asked = self._source.ask()
        if now >= self._until:
            yield self._complete(stall, now)

    def cut_short(self, now: float) -> Stalled | None:
        """What there is of a stall that is being gathered, because the server has ended."""
        return self._complete(self._stall, now) if self._stall else None

    def _complete(self, stall: Triggered, now: float) -> Stalled:
        begun = max(stall.since - self._settings.before_s, self._begun)
        before = self._source.between(begun, stall.since - _APART_S)
        fetched = self._source.end()
        evidence = self._source.between(stall.since, now, self._asked)
        self._stall, self._asked, self._rests_until = None, None, now + self._settings.cooldown_s
        return Stalled(stall.trigger, stall.number, evidence, before, fetched)
