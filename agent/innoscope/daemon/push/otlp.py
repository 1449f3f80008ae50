"""The thread that sends metrics, log records and profiles to a receiver of OTLP/HTTP."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, NamedTuple, Protocol

import msgspec

from innoscope.common import sanitize
from innoscope.common.errors import BadFile
from innoscope.common.samples import Sample
from innoscope.common.typed import decode_json
from innoscope.daemon.push import otlp_encoding, otlp_profiles
from innoscope.daemon.push.client import HttpSender
from innoscope.daemon.push.errors import REASONS, PushFailed
from innoscope.daemon.push.formats import PushRequest
from innoscope.daemon.push.otlp_encoding import PATHS, OtlpPayload, StartTimes
from innoscope.daemon.push.profile_merger import ProfileMerger
from innoscope.daemon.push.queue import BoundedQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from innoscope.common.supervision import Beat
    from innoscope.daemon.push.client import HttpAnswer
    from innoscope.daemon.push.otlp_encoding import Attributes, LogRecord
    from innoscope.daemon.push.settings import Otlp
    from innoscope.metrics.merge import ExportedSeries
    from innoscope.sampling.profile_history import Chunk
    from innoscope.target.model import Target

_log = logging.getLogger(__name__)

#: Values of the ``outcome`` label of ``innoscope_otlp_items_total``.
OUTCOMES: Final = ("sent", "rejected", "refused", "dropped")
#: A non-negative int64 in JSON: a number, or a string of decimal digits.
_Number = Annotated[int, msgspec.Meta(ge=0)] | Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,19}\Z")]
#: Pause after the first failure, in seconds. It doubles with each failure, and up to half of it is random.
_FIRST_WAIT_S: Final = 1.0
#: Maximum pause after a failure, in seconds, unless the receiver requests a longer one.
_MAX_WAIT_S: Final = 60.0
#: Seconds allowed for sending the remaining payloads before the agent exits.
_LAST_S: Final = 2.0
#: Maximum number of log records that wait to be encoded.
_MAX_RECORDS: Final = 1_000
_SLEEP_S: Final = 5.0
_HANGS_S: Final = 60.0
_MAX_LOGGED: Final = 200


class MetricValues(NamedTuple):
    """The values of all series at one time, in Unix nanoseconds."""

    at_ns: int
    series: tuple[ExportedSeries, ...]


class OtlpSender(HttpSender):
    """Sends requests to the receiver.

    The OpenTelemetry Protocol Specification allows retries only after the statuses in ``retried`` ("Retryable
    Response Codes").
    """

    retried: ClassVar[frozenset[int] | None] = frozenset({429, 502, 503, 504})
    reads_body: ClassVar[bool] = True

    def __init__(self, otlp: Otlp) -> None:
        super().__init__(otlp, "otlp", "the data", headers={"Content-Encoding": "gzip"})

    def post(self, request: PushRequest, timeout_s: float | None = None) -> HttpAnswer:
        """Send a request. Raise PushFailed if it fails or if the response is not OTLP in JSON.

        An empty response is accepted, because Prometheus sends neither a body nor a content type.
        """
        answer = super().post(request, timeout_s)
        if answer.body and answer.headers.get_content_type() != "application/json":
            what = f"{self.where} accepted the request, but is not a receiver of OTLP in JSON"
            remedy = "set otlp.url to the base URL of the receiver of OTLP/HTTP, by default with port 4318"
            raise PushFailed("protocol", what, remedy=remedy, again=False)
        return answer


class RequestSender(Protocol):
    """The part of ``OtlpSender`` that the exporter uses."""

    def post(self, request: PushRequest, timeout_s: float | None = None) -> HttpAnswer:
        """Send a request. Raise PushFailed if it fails."""


class _PartialSuccess(msgspec.Struct, frozen=True, rename="camel"):
    """Export*PartialSuccess in collector/*/*/*_service.proto, for all signals."""

    rejected_data_points: _Number = 0
    rejected_log_records: _Number = 0
    rejected_profiles: _Number = 0
    error_message: str = ""


class _ExportResponse(msgspec.Struct, frozen=True, rename="camel"):
    """Export*ServiceResponse."""

    partial_success: _PartialSuccess | None = None


@dataclass(slots=True)
class OtlpCounts:
    """Counts of data points, log records and profiles by outcome, and of failed attempts by reason."""

    signals: tuple[str, ...]
    items: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    queue_bytes: int = 0
    last_success: float = 0.0

    def samples(self) -> list[Sample]:
        """Return the counters as samples."""
        pairs = [(signal, outcome) for signal in self.signals for outcome in OUTCOMES]
        return [
            *(Sample("otlp_items", self.items[pair], pair) for pair in pairs),
            *(Sample("otlp_failures", self.failures[reason], (reason,)) for reason in REASONS),
            Sample("otlp_queue_bytes", self.queue_bytes),
            Sample("otlp_last_success_timestamp_seconds", self.last_success),
        ]


class OtlpExporter:
    """Sends metrics and profiles once per interval, and log records as they occur, oldest first.

    Any thread may call ``log``, ``take`` and ``end``. Only the exporting thread may call ``run`` and
    ``step``. ``collect`` returns the current values, or None if there are none; ``resources`` returns the
    attributes of each server, and under "" the agent's. ``clock`` is monotonic.
    """

    def __init__(
        self,
        otlp: Otlp,
        collect: Callable[[], MetricValues | None],
        resources: Callable[[], Mapping[str, Attributes]],
        *,
        sender: RequestSender | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._otlp, self._collect, self._resources = otlp, collect, resources
        self._sender = sender or OtlpSender(otlp)
        self._clock, self._jitter = clock, jitter
        enabled = {"metrics": otlp.metrics, "logs": otlp.logs, "profiles": otlp.profiles}
        self._counts = OtlpCounts(tuple(signal for signal in PATHS if enabled[signal]))
        self._queue: BoundedQueue[OtlpPayload] = BoundedQueue(otlp.memory_bytes)
        self._starts = StartTimes()
        self._profiles = ProfileMerger(otlp.interval_seconds, clock=clock, wall=wall, jitter=jitter)
        self._records: deque[LogRecord] = deque()
        self._lock = threading.Lock()
        # jitter, so that agents started at the same time do not send at the same time
        self._metrics_due = clock() + jitter(0.0, min(otlp.interval_seconds, 10.0))
        self._failures = 0
        self._not_before = 0.0
        self._wake = threading.Event()
        self._ending = False

    @property
    def hangs_s(self) -> float:
        """Return the seconds without a heartbeat after which ``run`` counts as hung."""
        return _HANGS_S + self._otlp.timeout_seconds

    def samples(self) -> list[Sample]:
        """Return the metrics of the exporter itself."""
        return self._counts.samples()

    def log(self, records: Iterable[LogRecord]) -> None:
        """Add records to send. If too many wait, the oldest are dropped."""
        if not self._otlp.logs:
            return
        with self._lock:
            self._records.extend(records)
            while len(self._records) > _MAX_RECORDS:
                self._records.popleft()
                self._counts.items["logs", "dropped"] += 1
            if self._records:
                self._wake.set()

    def take(self, server: str, target: Target, chunks: Iterable[Chunk]) -> None:
        """Add new snapshots of a server. ``server`` is the value of the ``server`` label."""
        if self._otlp.profiles:
            self._profiles.take(server, target, chunks)

    def run(self, beat: Beat = lambda: None) -> None:
        """Encode and send until ``end`` is called."""
        while not self._ending:
            beat()
            self._wake.clear()
            try:
                pause_s = self.step(beat)
            except Exception:
                _log.exception("cannot export to the OTLP receiver")
                pause_s = self._otlp.interval_seconds
            if not self._ending:
                self._wake.wait(min(pause_s, _SLEEP_S))
        self._send_remaining()

    def end(self) -> None:
        """Make ``run`` return, after at most one attempt to send each of the remaining payloads."""
        self._ending = True
        self._wake.set()

    def step(self, beat: Beat = lambda: None) -> float:
        """Encode what is due, and send. Return the seconds until the next step."""
        self._encode()
        while (oldest := self._queue.oldest) is not None and self._clock() >= self._not_before:
            beat()
            if self._ending or not self._attempt(oldest):
                break
            self._encode()  # a slow receiver must not delay the next values
        self._counts.queue_bytes = self._queue.bytes
        due = [*self._profiles.times(), *([self._metrics_due] if self._otlp.metrics else [])]
        if self._queue:
            due.append(self._not_before)
        return max(0.1, min(due, default=self._clock() + _SLEEP_S) - self._clock())

    def _encode(self, *, force: bool = False) -> None:
        """Encode the metrics and profiles that are due, and the waiting log records.

        If ``force`` is true, all profiles are due.
        """
        now = self._clock()
        if self._otlp.metrics and now >= self._metrics_due:
            self._metrics_due = max(self._metrics_due + self._otlp.interval_seconds, now)
            values = self._collect()
            if values is not None:
                for payload in otlp_encoding.metrics(
                    values.series, self._resources(), values.at_ns, self._starts
                ):
                    self._put(payload)
        with self._lock:
            records = list(self._records)
            self._records.clear()
        if records:
            logs = otlp_encoding.logs(records, self._resources(), time.time_ns())
            if logs is not None:
                self._put(logs)
        for chunks in self._profiles.due(now, force=force):
            self._put(otlp_profiles.profile(chunks, self._resources()))

    def _put(self, payload: OtlpPayload) -> None:
        for dropped in self._queue.put(payload):
            self._lose(dropped, "dropped")

    def _attempt(self, payload: OtlpPayload) -> bool:
        """Send the oldest payload. Return whether to continue with the next one."""
        try:
            answer = self._sender.post(self._request(payload))
        except PushFailed as error:
            return self._handle_failure(payload, error)
        self._queue.take()
        self._count_accepted(payload, answer)
        if self._failures:
            extra = {"failures": self._failures, "waiting": len(self._queue)}
            _log.info("export to the OTLP receiver recovered", extra=extra)
        self._failures, self._not_before = 0, 0.0
        return True

    def _request(self, payload: OtlpPayload) -> PushRequest:
        path = self._otlp.target.path.rstrip("/") + PATHS[payload.signal]
        return PushRequest(path, "application/json", payload.body)

    def _count_accepted(self, payload: OtlpPayload, answer: HttpAnswer) -> None:
        rejected, words = partial_success(answer.body, payload)
        self._counts.items[payload.signal, "sent"] += payload.items - rejected
        self._counts.items[payload.signal, "rejected"] += rejected
        self._counts.last_success = time.time()
        if words or rejected:
            extra = {"signal": payload.signal, "rejected": rejected, "reason": words}
            _log.warning("the OTLP receiver rejected data", extra=extra)

    def _handle_failure(self, payload: OtlpPayload, error: PushFailed) -> bool:
        self._counts.failures[error.reason] += 1
        log = _log.warning if not self._failures or not error.again else _log.debug
        extra = {"signal": payload.signal, "reason": error.what, "remedy": error.remedy, "again": error.again}
        log("export to the OTLP receiver failed", extra=extra)
        if not error.again:
            self._queue.take()
            self._lose(payload, "refused")
            return True
        self._failures += 1
        pause_s = error.pause_s(self._failures, _FIRST_WAIT_S, _MAX_WAIT_S)
        self._not_before = self._clock() + max(self._jitter(pause_s / 2, pause_s), error.after_s)
        return False

    def _lose(self, payload: OtlpPayload, outcome: str) -> None:
        self._counts.items[payload.signal, outcome] += payload.items
        if payload.signal == "metrics":
            self._starts.restart()

    def _send_remaining(self) -> None:
        """Send the remaining payloads before the agent exits, until an attempt fails or 2 s have passed."""
        deadline = self._clock() + _LAST_S
        self._metrics_due = float("inf")  # the last values have been sent or are in the queue
        self._encode(force=True)
        while (oldest := self._queue.oldest) is not None and (left := deadline - self._clock()) > 0:
            try:
                self._sender.post(self._request(oldest), left)
            except PushFailed as error:
                extra = {"reason": error.what, "lost": len(self._queue)}
                _log.warning("export to the OTLP receiver failed", extra=extra)
                return
            self._queue.take()


def partial_success(body: bytes, payload: OtlpPayload) -> tuple[int, str]:
    """Return the number of items that the receiver rejected, and its message; (0, "") if it accepted all."""
    if not body:
        return 0, ""
    try:
        found = decode_json(body, _ExportResponse, "the response").partial_success or _PartialSuccess()
    except BadFile as error:
        return 0, error.what
    rejected = {
        "metrics": found.rejected_data_points,
        "logs": found.rejected_log_records,
        "profiles": found.rejected_profiles,
    }[payload.signal]
    return min(int(rejected), payload.items), sanitize.words(found.error_message, _MAX_LOGGED)
