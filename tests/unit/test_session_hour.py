"""Test the agent's hour of samples: sums by class, statement and stack, limits, and past findings."""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from innoscope.daemon.agent import session_hour
from innoscope.daemon.agent.past_findings import past
from innoscope.daemon.agent.session_hour import (
    MAX_BYTES,
    MAX_ROWS,
    OTHERS,
    UNKNOWN,
    SessionHour,
    SessionRow,
    digest_number,
    digest_text,
)
from innoscope.diagnose.rules import default_rules
from innoscope.sampling.sessions.model import Batch, Sampled, SharedValues, stack_id
from innoscope.sampling.snapshot_history import CLIENT
from innoscope.target.digests import digest_id
from unit.session_samples import STACK, START, STATEMENT, Clock, batch, shape
from unit.snapshots import target

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME = "orders"
UPDATE = digest_number(digest_id(STATEMENT))


def hour_of(*batches: Batch, most_bytes: int = MAX_BYTES, now: float = START) -> SessionHour:
    hour = SessionHour(most_bytes=most_bytes, clock=Clock(now))
    for one in batches:
        hour.add(NAME, one)
    return hour


def statement(
    number: int, wait: str = "on_cpu", text: str = "SELECT {}"
) -> tuple[SharedValues, dict[str, str]]:
    digest = digest_id(text.format(number))
    stack = ("leaf", f"f{number}", "do_command")
    one = SharedValues(CLIENT, "app", "shop", digest, "Query", wait, None, None, "exact", "exact", stack)
    return one, {digest: text.format(number)}


def distinct(at: float, numbers: Iterable[int], text: str = "SELECT {}") -> Batch:
    """Return a snapshot in which each thread has its own statement and stack."""
    found = [statement(number, text=text) for number in numbers]
    ids = [*range(1, len(found) + 1)]
    sampled = Sampled(int(at * 1e6), 1.0, ids, [*range(len(found))], ids, [None] * len(ids))
    texts = {digest: text for _, one in found for digest, text in one.items()}
    return Batch([shape for shape, _ in found], [sampled], texts)


def test_seconds_are_summed_by_class_statement_and_stack() -> None:
    both = (shape(), shape("page_read"))
    hour = hour_of(*(batch(START + second, range(10, 14), 1.0, *both) for second in range(10)))
    (step,) = hour.between(NAME, START, START + 5)
    assert (step.at, step.weight, step.snapshots) == (START, 10, 10)
    stack = stack_id(STACK)
    assert dict(step.rows()) == {
        SessionRow(CLIENT, "row_lock", UPDATE, stack): 20,
        SessionRow(CLIENT, "page_read", UPDATE, stack): 20,
    }
    assert hour.texts(NAME) == {UPDATE: STATEMENT}
    assert hour.oldest(NAME) == START
    assert hour.oldest("other") is None
    assert hour.between("other", 0, START + 99) == []


def test_period_selects_the_steps_that_overlap_it() -> None:
    hour = hour_of(*(batch(START + second) for second in range(0, 60, 5)))
    assert [step.at - START for step in hour.between(NAME, START + 10, START + 29.999)] == [10, 20]
    assert [step.at - START for step in hour.between(NAME, START + 50, START + 90)] == [50]


def test_idle_seconds_count_as_observed() -> None:
    hour = hour_of(batch(START), batch(START + 1, range(0)))
    (step,) = hour.between(NAME, START, START)
    assert step.weight == 2
    assert sum(seconds for _, seconds in step.rows()) == 3


def test_samples_expire_after_an_hour_and_if_the_clock_is_set_back() -> None:
    clock = Clock()
    hour = SessionHour(clock=clock)
    for minute in range(90):
        clock.now = START + 60 * minute
        hour.add(NAME, batch(clock.now))
    assert hour.oldest(NAME) == START + 60 * 29
    clock.now = START - 7200
    hour.add(NAME, batch(clock.now))
    assert [step.at for step in hour.between(NAME, 0, START * 2)] == [START - 7200]


def test_rare_rows_lose_stack_and_statement_but_no_time() -> None:
    batches = [distinct(START + second, range(300)) for second in range(3)]
    batches += [batch(START + second) for second in range(3)]
    hour = hour_of(*batches)
    (step,) = hour.between(NAME, START, START)
    assert len(dict(step.rows())) <= MAX_ROWS + 2
    assert sum(seconds for _, seconds in step.rows()) == pytest.approx(3 * 303)
    assert dict(step.rows())[SessionRow(CLIENT, "row_lock", UPDATE, stack_id(STACK))] == 9
    assert any(row.digest == OTHERS for row, _ in step.rows())


def test_hostile_names_do_not_exceed_the_limit() -> None:
    tracemalloc.start()
    try:
        hour = SessionHour(clock=Clock(START + 3600))
        before = tracemalloc.get_traced_memory()[0]
        for step in range(60):
            numbers = range(step * 1_000, step * 1_000 + 300)
            hour.add(NAME, distinct(START + 10 * step, numbers, "SELECT {} \x1b[31m" + "\U0001f4a9" * 500))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert hour.used_bytes <= MAX_BYTES
    assert grown < 1 << 20
    texts = hour.texts(NAME)
    assert all(len(text) <= 240 and text.isprintable() for text in texts.values())
    oldest = hour.oldest(NAME)
    assert oldest is not None
    assert oldest > START, "the oldest samples are dropped first"


def test_text_of_a_statement_is_dropped_with_its_last_sample() -> None:
    hour = hour_of(batch(START), now=START)
    for step in range(1, 400):
        hour.add(NAME, distinct(START + 10 * step, [step % 3]))
    assert UPDATE in hour.texts(NAME)
    hour._clock = Clock(START + 3_990)
    hour.add(NAME, distinct(START + 3_990, [1]))
    assert UPDATE not in hour.texts(NAME)


def test_thread_without_a_statement_has_an_unknown_one() -> None:
    one = shape()._replace(digest=None)
    (step,) = hour_of(batch(START, range(1), 1.0, one)).between(NAME, START, START)
    assert [row.digest for row, _ in step.rows()] in ([UNKNOWN], [])
    (step,) = hour_of(batch(START, range(10, 11), 1.0, one)).between(NAME, START, START)
    assert [row.digest for row, _ in step.rows()] == [UNKNOWN]


@pytest.mark.parametrize("text", ["", "abc", "x" * 32, "' OR 1=1 -- padding"])
def test_malformed_digest_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"digest|invalid literal"):
        digest_number(text)


def test_digest_has_the_digits_that_the_history_command_accepts() -> None:
    assert digest_id(STATEMENT).startswith(digest_text(UPDATE))


@pytest.mark.parametrize("seconds", [10, 600])
def test_findings_of_a_past_time_are_those_of_its_samples(seconds: int) -> None:
    hour = hour_of(*(batch(START + second, range(1, 61)) for second in range(seconds)), now=START + seconds)
    steps = hour.between(NAME, START, START + seconds - 1)
    evidence, verdict = past(target(), steps, {stack_id(STACK): STACK})
    assert [finding.name for finding in verdict.findings] == ["row_lock_convoy"]
    assert verdict.findings[0].title == "60 threads wait for row locks"
    assert verdict.findings[0].stacks[0].functions == STACK
    assert verdict.findings[0].blockers[0].words == "unknown: lock owners are known only for the last minute"
    assert (evidence.begun, evidence.ended) == (START, START + seconds)
    (unchecked,) = verdict.cannot_tell
    assert {"long_rollback", "cpu_loop", "server_stopped", "dirty_limit"} <= {*unchecked.findings}
    assert "row_lock_convoy" not in unchecked.findings
    assert verdict.checked + len(unchecked.findings) == verdict.rules == len(default_rules())


def test_past_threads_keep_their_kind_and_mean_number() -> None:
    purge = shape("page_read")._replace(kind="purge", digest=None)
    both = (shape("page_read"), shape("page_read"), purge)
    hour = hour_of(*(batch(START + second, range(1, 8), 1.0, *both) for second in range(10)))
    evidence, _ = past(target(), hour.between(NAME, START, START), {})
    assert len(evidence.snapshots) == 10
    assert evidence.threads(clients=True) == {"page_read": 50}
    assert evidence.threads(clients=False) == {"page_read": 20}


def test_classes_beyond_the_limit_count_as_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_hour, "_MAX_CLASSES", 3)
    shapes = [shape(wait) for wait in ("row_lock", "page_read", "new_1", "new_2")]
    hour = hour_of(batch(START, range(10, 14), 1.0, *shapes))
    (step,) = hour.between(NAME, START, START + 5)
    seconds = defaultdict[tuple[str, str], float](float)
    for row, value in step.rows():
        seconds[row.kind, row.wait] += value
    assert seconds == {(CLIENT, "row_lock"): 1, (CLIENT, "page_read"): 1, ("other", "other"): 2}


def test_open_steps_count_and_use_at_most_half_of_the_memory() -> None:
    hour = SessionHour(most_bytes=100_000, clock=Clock(START))
    for number in range(40):
        hour.add(f"server {number}", distinct(START, range(150 * number, 150 * (number + 1))))
    open_bytes = hour.used_bytes
    assert open_bytes > 40 * 150 * session_hour._OPEN_ROW_BYTES
    assert not hour._steps
    for number in range(40):
        hour.add(f"server {number}", distinct(START + 10, range(10)))
    assert hour.used_bytes < open_bytes / 2
    assert hour._steps, "the open steps leave no room for any other"
    assert hour._bytes <= 100_000
