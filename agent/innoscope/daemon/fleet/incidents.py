"""List and fetch the incident files of many agents concurrently."""

from __future__ import annotations

import os
import secrets
import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from innoscope.common.errors import CannotWrite
from innoscope.daemon.fleet.client import AgentFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from innoscope.daemon.fleet.agents import AgentAddress
    from innoscope.daemon.fleet.client import AgentClient, IncidentRow

#: Number of agents that are queried at the same time.
_AGENTS_AT_ONCE: Final = 32
_FILES_AT_ONCE: Final = 8

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class AgentIncident(NamedTuple):
    """An incident file of an agent."""

    agent: AgentAddress
    row: IncidentRow


class FailedAgent(NamedTuple):
    """An agent that did not answer as expected."""

    agent: AgentAddress
    error: AgentFailed


@dataclass(frozen=True, slots=True)
class FetchedIncident:
    """A file that was fetched, or that was already in the folder (``new`` is false)."""

    incident: AgentIncident
    path: Path
    new: bool


def list_all(
    client: AgentClient, agents: Sequence[AgentAddress]
) -> tuple[list[AgentIncident], list[FailedAgent]]:
    """Return the incidents of all agents, newest first, and the agents that failed."""

    def one(agent: AgentAddress) -> list[AgentIncident] | FailedAgent:
        try:
            return [AgentIncident(agent, row) for row in client.incidents(agent)]
        except AgentFailed as error:
            return FailedAgent(agent, error)

    answers = _in_threads(one, agents, _AGENTS_AT_ONCE)
    found = [incident for answer in answers if not isinstance(answer, FailedAgent) for incident in answer]
    found.sort(key=lambda one: (one.row.at, one.row.file), reverse=True)
    return found, [answer for answer in answers if isinstance(answer, FailedAgent)]


def fetch_all(
    client: AgentClient, incidents: Sequence[AgentIncident], folder: Path
) -> tuple[list[FetchedIncident], list[FailedAgent]]:
    """Store incident files as ``folder/HOST_PORT/FILE``. Do not fetch files that exist already.

    Return the files that are in the folder afterwards, and a failure for each file that an agent did not
    send. Raise CannotWrite if a file cannot be written.
    """
    answers = _in_threads(partial(_fetch, client, folder), incidents, _FILES_AT_ONCE)
    failures = [answer for answer in answers if isinstance(answer, FailedAgent)]
    return [answer for answer in answers if not isinstance(answer, FailedAgent)], failures


def within(incidents: Iterable[AgentIncident], most_bytes: int) -> tuple[list[AgentIncident], int]:
    """Return the first incidents whose sizes add up to at most ``most_bytes``, and the number of others."""
    chosen: list[AgentIncident] = []
    left_out = 0
    for one in incidents:
        most_bytes -= one.row.bytes
        if most_bytes < 0 or left_out:
            left_out += 1
        else:
            chosen.append(one)
    return chosen, left_out


def _in_threads(work: Callable[[_In], _Out], items: Sequence[_In], most: int) -> list[_Out]:
    """Return the results of ``work`` in the order of the items. Raise the first exception that it raises.

    The threads are daemon threads, so that Ctrl-C ends the program immediately. A ThreadPoolExecutor would
    first wait for the running requests.
    """
    waiting = deque(enumerate(items))
    results: dict[int, _Out] = {}
    errors: list[BaseException] = []

    def run() -> None:
        while not errors:
            try:
                number, item = waiting.popleft()
            except IndexError:
                return
            try:
                results[number] = work(item)
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(min(most, len(items)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(items))]


def _fetch(client: AgentClient, folder: Path, incident: AgentIncident) -> FetchedIncident | FailedAgent:
    path = folder / incident.agent.folder_name / incident.row.file
    partial_path = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.path.lexists(path):
            return FetchedIncident(incident, path, new=False)
        descriptor = os.open(partial_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                client.download(incident.agent, incident.row, file)
            partial_path.replace(path)
        finally:
            partial_path.unlink(missing_ok=True)
    except AgentFailed as error:
        return FailedAgent(incident.agent, error)
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror}", remedy="--dir OTHER") from error
    return FetchedIncident(incident, path, new=True)
