"""Evaluate the triggers once a second, and capture evidence if one holds. Callers pass the current time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from innoscope.diagnose.incident.capture import make_capture
from innoscope.diagnose.signals import Signals
from innoscope.diagnose.unavailable import Unknown
from innoscope.diagnose.watch.triggers import shown, value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.incident.model import Capture
    from innoscope.diagnose.incident.server_facts import ServerFacts
    from innoscope.diagnose.sql_queries import SqlAnswers
    from innoscope.diagnose.verdict import Verdict
    from innoscope.diagnose.watch.triggers import Trigger

#: Share of the capture's duration after which the SQL queries run.
_QUERY_AFTER: Final = 0.3
#: Seconds without a value before a trigger is reported as unavailable.
_PATIENCE_S: Final = 10.0
#: Gap in seconds between the evidence before and during the stall, so that no snapshot is in both.
_APART_S: Final = 1e-3


class EvidenceSource(Protocol):
    """The recorder of one server, which also runs queries on the server."""

    def without_sql(self, begin: float, end: float) -> Evidence:
        """Return the evidence between two Unix times, without SQL results and possibly without stacks."""

    def between(self, begin: float, end: float, sql_answers: SqlAnswers | None = None) -> Evidence:
        """Return the evidence between two Unix times."""

    def begin(self) -> None:
        """Prepare for the capture of a stall."""

    def query_locks(self) -> SqlAnswers:
        """Run the SQL queries: lock owners, transactions, process list and others."""

    def end(self) -> ServerFacts:
        """End the capture, and return InnoDB's status and the variables."""


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """The triggers and the timing of captures, in seconds.

    A capture starts after a trigger has held for ``for_s`` seconds, and collects evidence for ``seconds``.
    The file also contains the evidence of ``before_s`` seconds before the stall. After a capture, triggers
    are ignored for ``cooldown_s`` seconds.
    """

    triggers: tuple[Trigger, ...]
    for_s: float = 3.0
    seconds: float = 10.0
    before_s: float = 60.0
    cooldown_s: float = 300.0

    @property
    def span_s(self) -> float:
        """Return how long a recorder must store evidence, in seconds."""
        most = max((trigger.window_s for trigger in self.triggers), default=0.0)
        return self.before_s + most + self.for_s + self.seconds + 5.0


@dataclass(frozen=True, slots=True)
class Triggered:
    """Event: a trigger has held long enough. ``number`` is its value.

    ``since`` is the Unix time at which the evidence that first satisfied the trigger begins.
    """

    trigger: Trigger
    number: float
    since: float


@dataclass(frozen=True, slots=True)
class TriggerUnavailable:
    """Event: a trigger currently has no value."""

    trigger: Trigger
    words: str


@dataclass(frozen=True, slots=True)
class Stalled:
    """Event: a capture is complete, with the evidence from the stall and from the time before it."""

    trigger: Trigger
    number: float
    evidence: Evidence
    before: Evidence
    fetched: ServerFacts

    def capture(self) -> tuple[Capture, Verdict]:
        """Return the contents of the incident file, and the verdict."""
        words = f"{self.trigger.text} ({shown(self.number)})"
        return make_capture(self.evidence, self.fetched, before=self.before, trigger=words)


Event = Triggered | TriggerUnavailable | Stalled


class Watcher:
    """Watches one server. Call ``step`` about once a second."""

    def __init__(self, source: EvidenceSource, settings: WatchSettings, begun: float) -> None:
        self._source, self._settings = source, settings
        self._begun = begun
        self._since: dict[Trigger, float] = {}
        self._unavailable: dict[Trigger, str] = {}
        self._known_at: dict[Trigger, float] = {}
        self._stall: Triggered | None = None
        self._until = 0.0
        self._answers: SqlAnswers | None = None
        self._cooldown_until = 0.0

    def step(self, now: float) -> Iterator[Event]:
        """Evaluate the triggers or continue a capture, and yield the events; ``now`` is a Unix time."""
        if self._stall is not None:
            yield from self._continue(self._stall, now)
        elif now >= self._cooldown_until:
            yield from self._judge(now)

    def _judge(self, now: float) -> Iterator[Event]:
        signals: dict[float, Signals] = {}
        for trigger in self._settings.triggers:
            window = trigger.window_s
            if window not in signals:
                signals[window] = Signals(self._source.without_sql(now - window, now))
            try:
                number = value(trigger.name, signals[window])
            except Unknown as error:
                self._since.pop(trigger, None)
                yield from self._report_unavailable(trigger, error.words, now)
                continue
            self._known_at[trigger] = now
            self._unavailable.pop(trigger, None)
            if not trigger.holds(number):
                self._since.pop(trigger, None)
            elif now - self._since.setdefault(trigger, now) >= self._settings.for_s:
                yield self._begin(Triggered(trigger, number, self._since[trigger] - window), now)
                return

    def _report_unavailable(self, trigger: Trigger, words: str, now: float) -> Iterator[TriggerUnavailable]:
        """Report each reason once. Ignore short gaps, such as one or two missing snapshots on a busy host."""
        known_at = self._known_at.setdefault(trigger, self._begun)
        if now - known_at > _PATIENCE_S and self._unavailable.get(trigger) != words:
            self._unavailable[trigger] = words
            yield TriggerUnavailable(trigger, words)

    def _begin(self, stall: Triggered, now: float) -> Triggered:
        self._stall, self._until, self._answers = stall, now + self._settings.seconds, None
        self._since.clear()
        self._source.begin()
        return stall

    def _continue(self, stall: Triggered, now: float) -> Iterator[Event]:
        if self._answers is None and now >= self._until - self._settings.seconds * (1 - _QUERY_AFTER):
            self._answers = self._source.query_locks()
        if now >= self._until:
            # If the host stalled only briefly, a second attempt succeeds.
            if self._answers is not None and self._answers.lacks_blockers:
                self._answers = self._answers.completed_by(self._source.query_locks())
            yield self._complete(stall, now)

    def finish_early(self, now: float) -> Stalled | None:
        """End the capture because the server has exited, and return it; None if none is in progress."""
        return self._complete(self._stall, now) if self._stall else None

    def _complete(self, stall: Triggered, now: float) -> Stalled:
        begun = max(stall.since - self._settings.before_s, self._begun)
        before = self._source.between(begun, stall.since - _APART_S)
        fetched = self._source.end()
        evidence = self._source.between(stall.since, now, self._answers)
        self._stall, self._answers, self._cooldown_until = None, None, now + self._settings.cooldown_s
        return Stalled(stall.trigger, stall.number, evidence, before, fetched)
