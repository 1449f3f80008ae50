"""The error of a failed request to a receiver: its reason, and whether to retry."""

from __future__ import annotations

from typing import Final

from innoscope.common.errors import ExitCode, InnoscopeError

#: Values of the ``reason`` label of ``innoscope_push_failures_total`` and ``innoscope_otlp_failures_total``.
REASONS: Final = (
    "refused", "auth", "too_large", "busy", "error", "unavailable", "redirect", "timeout", "dns",
    "connection", "tls", "protocol", "file",
)  # fmt: skip


class PushFailed(InnoscopeError):
    """A failed attempt to send a profile, OTLP data, a notification or an incident file.

    ``again`` is true if the same request should be sent again.
    ``after_s`` is the delay in seconds that the receiver requested (Retry-After).
    """

    exit_code = ExitCode.PUSH_REJECTED

    def __init__(
        self, reason: str, what: str, *, remedy: str, again: bool = True, after_s: float = 0.0
    ) -> None:
        super().__init__(what, remedy=remedy)
        self.reason, self.again, self.after_s = reason, again, after_s

    def pause_s(self, failures: int, first_s: float, most_s: float) -> float:
        """Return the seconds until the next attempt, after ``failures`` consecutive failures (1 or more).

        The pause doubles with each failure, up to ``most_s``, and is at least what the receiver requested.
        """
        return max(self.after_s, min(most_s, first_s * 2.0 ** min(failures - 1, 10)))
