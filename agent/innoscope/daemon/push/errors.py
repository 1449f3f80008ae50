"""The error of a failed push: its reason, and whether to retry."""

from __future__ import annotations

from typing import Final

from innoscope.common.errors import ExitCode, InnoscopeError

#: Values of the label ``reason`` of ``innoscope_push_failures_total``.
REASONS: Final = (
    "refused", "auth", "too_large", "busy", "error", "unavailable", "redirect", "timeout", "dns",
    "connection", "tls", "protocol", "file",
)  # fmt: skip


class PushFailed(InnoscopeError):
    """One attempt to push a profile failed.

    ``again`` is true if the same profile should be sent again.
    ``after_s`` is the delay in seconds that the receiver requested (Retry-After).
    """

    exit_code = ExitCode.PUSH_REJECTED

    def __init__(
        self, reason: str, what: str, *, remedy: str, again: bool = True, after_s: float = 0.0
    ) -> None:
        super().__init__(what, remedy=remedy)
        self.reason, self.again, self.after_s = reason, again, after_s
