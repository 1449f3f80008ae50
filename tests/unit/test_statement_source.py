"""Snapshots continue without statements until the layout is known, and after a failure."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING

import pytest

from innoscope.common.errors import NoRights, NoSuchProcess
from innoscope.memory.statements import source as module
from innoscope.memory.statements.layout import StatementLayout
from innoscope.memory.statements.source import LEARNING, StatementSource
from unit.snapshots import target
from unit.test_statements_in_memory import SNAPSHOT, FakeEngine, FakeReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope._native import Command
    from innoscope.common.workers import Job
    from innoscope.memory.statements.attribution import CommandReader
    from innoscope.target.model import Target

STATEMENT = "SELECT 'S3cr3tL1t3ral'"


class FakeWorkers:
    """Fake workers, which store the submitted jobs until ``run`` is called."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def cancel(self, job: Job) -> None:
        if job in self.jobs:
            self.jobs.remove(job)

    def run(self) -> int:
        """Run all submitted jobs, and return how many there were."""
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            assert job.kind == LEARNING
            job.run()
        return len(jobs)


class BrokenReader(FakeReader):
    """A reader that raises ``error``, if it is set, instead of returning the commands."""

    error: BaseException | None = None

    def commands(self) -> dict[int, Command]:
        if self.error is not None:
            raise self.error
        return super().commands()


class Fixture:
    """A statement source with a fake engine, reader and workers.

    ``learned`` is the layout that is found, or the error that is raised instead.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.workers = FakeWorkers()
        self.engine = FakeEngine(SNAPSHOT, {}, {}, {})
        self.reader: BrokenReader | None = BrokenReader(dict.fromkeys((71, 81), STATEMENT))
        self.learned: StatementLayout | Exception = StatementLayout(None, "no symbol server_threads")
        self.source = StatementSource(
            target(),
            self.engine,
            self.workers,  # type: ignore[arg-type]
            learn=self._learn,
            open_reader=self._open_reader,
            open_blockers=lambda _: None,
            clock=lambda: self.now,
        )

    def _learn(self, _: Target) -> StatementLayout:
        if isinstance(self.learned, Exception):
            raise self.learned
        return self.learned

    def _open_reader(self, *_: object) -> CommandReader | None:
        return self.reader

    def digests(self) -> Sequence[str | None]:
        """Take a snapshot, and return the digests of its threads."""
        threads = self.source.take_snapshot().threads
        return [one.query.digest_text if one.query else None for one in threads]

    def learn(self) -> None:
        self.digests()
        assert self.workers.run() == 1
        self.digests()  # the first snapshot provides the ids of the threads


WITHOUT, WITH = [None] * 3, ["SELECT ?", "SELECT ?", None]


def test_first_snapshots_do_not_wait_for_the_layout() -> None:
    fixture = Fixture()
    assert fixture.digests() == fixture.digests() == WITHOUT
    assert len(fixture.workers.jobs) == 1, "the layout is learned once"
    assert not fixture.source.available
    fixture.workers.run()
    assert fixture.source.available
    fixture.digests()
    assert fixture.digests() == WITH
    assert not fixture.workers.jobs


def test_closing_cancels_a_waiting_layout_job() -> None:
    fixture = Fixture()
    fixture.digests()
    assert fixture.workers.jobs
    fixture.source.close()
    fixture.source.close()
    assert not fixture.workers.jobs


def test_first_attempts_come_before_retries() -> None:
    fixture = Fixture()
    fixture.reader = None
    fixture.digests()
    assert not fixture.workers.jobs[0].slow
    fixture.workers.run()
    fixture.now = 60
    fixture.digests()
    assert fixture.workers.jobs[0].slow


def test_queries_have_ids_but_no_texts() -> None:
    fixture = Fixture()
    fixture.learn()
    query = fixture.source.take_snapshot().threads[0].query
    assert query is not None
    assert (query.text, query.trust, query.command) == (None, "running", "Query")
    assert query.digest_id is not None
    assert len(query.digest_id) == 32


def test_unknown_layout_is_logged_once_and_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    fixture = Fixture()
    fixture.reader = None
    attempts = []
    for now in range(0, 8_000, 10):
        fixture.now = now
        assert fixture.digests() == WITHOUT
        attempts += [now] * fixture.workers.run()
    pauses = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert pauses == [60, 120, 240, 480, 960, 1_920, 3_600]
    assert [record.reason for record in caplog.records] == ["no symbol server_threads"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NoRights("cannot inspect process 7", remedy="run it as root"), "cannot inspect process 7"),
        (ValueError(STATEMENT), "unexpected ValueError"),
        (KeyboardInterrupt(STATEMENT), "unexpected KeyboardInterrupt"),
    ],
)
def test_snapshots_continue_after_a_failure(
    error: BaseException, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    fixture = Fixture()
    fixture.learn()
    assert fixture.reader is not None
    fixture.reader.error = error
    assert fixture.digests() == WITHOUT
    assert not fixture.source.available
    [record] = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert record.reason.startswith(reason)  # type: ignore[attr-defined]
    assert STATEMENT not in record.getMessage() + str(vars(record))

    fixture.reader.error = None
    assert fixture.digests() == WITHOUT
    assert not fixture.workers.jobs
    fixture.now += module._RETRY_S
    fixture.learn()
    assert fixture.digests() == WITH


def test_success_resets_the_delay() -> None:
    fixture = Fixture()
    fixture.learn()
    reader = fixture.reader
    assert reader is not None
    for _ in range(3):
        reader.error = NoRights("cannot inspect process 7")
        assert fixture.digests() == WITHOUT
        reader.error = None
        fixture.now += module._RETRY_S
        fixture.learn()
        assert fixture.digests() == WITH


def test_reading_that_always_fails_is_retried_less_and_less_often() -> None:
    fixture = Fixture()
    assert fixture.reader is not None
    fixture.reader.error = NoRights("cannot inspect process 7")
    attempts = []
    for now in range(0, 1_000, 10):
        fixture.now = now
        fixture.digests()
        attempts += [now] * fixture.workers.run()
    pauses = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert pauses == [70, 130, 250, 490]  # a snapshot later than the retry of the layout


def test_failure_of_learning_is_tried_again() -> None:
    fixture = Fixture()
    fixture.learned = NoSuchProcess("process 7 has exited")
    fixture.learn()
    assert not fixture.source.available
    fixture.learned = StatementLayout(None, "debug information")
    fixture.now += module._RETRY_S
    fixture.learn()
    assert fixture.source.available


def test_a_failure_that_took_long_is_retried_later() -> None:
    """Let each attempt to read hostile debug information take 12 s. Attempts may use 1 % of the time."""
    fixture = Fixture()

    def learn(_: Target) -> StatementLayout:
        fixture.now += 12.0
        raise NoSuchProcess("reading it exceeds its limit of CPU time")

    fixture.source._learn = learn
    fixture.learn()
    fixture.now += 1199.0
    fixture.digests()
    assert not fixture.workers.jobs
    fixture.now += 1.0
    fixture.digests()
    assert len(fixture.workers.jobs) == 1


def test_lost_job_is_replaced() -> None:
    fixture = Fixture()
    fixture.digests()
    [job] = fixture.workers.jobs
    fixture.workers.jobs.clear()
    job.lost()
    fixture.now += module._RETRY_S
    fixture.learn()
    assert fixture.source.available


def test_errors_of_the_engine_are_raised() -> None:
    fixture = Fixture()
    fixture.learn()

    def fail() -> None:
        raise NoSuchProcess("process 7 has exited")

    fixture.engine.during = fail
    with pytest.raises(NoSuchProcess):
        fixture.source.take_snapshot()
