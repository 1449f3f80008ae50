"""Why a collector has nothing to say."""

from __future__ import annotations


class CollectorFailed(Exception):
    """``reason`` is a value of collector_failure_info's label in metrics.yaml, ``words`` are for a person."""

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(f"{reason}: {words}")
        self.reason = reason
        self.words = words
