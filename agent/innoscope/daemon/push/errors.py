"""Why a profile did not get through, and what is to be done about it."""

from __future__ import annotations

from typing import Final

from innoscope.common.errors import ExitCode, InnoscopeError

#: The label ``reason`` of ``innoscope_push_failures_total``.
REASONS: Final = (
    "refused", "auth", "too_large", "busy", "error", "unavailable", "redirect", "timeout", "dns",
    "connection", "tls", "protocol", "file",
)  # fmt: skip


class PushFailed(InnoscopeError):
    """One attempt failed.

    ``again``: whether the same profile may get through later. ``after_s``: not before so many seconds, as
    the receiver asked.
    """

    exit_code = ExitCode.PUSH_REJECTED

    def __init__(
        self, reason: str, what: str, *, remedy: str, again: bool = True, after_s: float = 0.0
    ) -> None:
        super().__init__(what, remedy=remedy)
        self.reason, self.again, self.after_s = reason, again, after_s
