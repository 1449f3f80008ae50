"""Report why a collector failed, with one of the reasons of ``collector_failure_info`` and a message."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import InnoscopeError, NoRights, NoSuchProcess, NotRead

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The values of the ``reason`` label of collector_failure_info (probes/catalog/metrics.yaml).
REASONS: Final = ("timeout", "denied", "refused", "gone", "stopped", "rights", "unsupported", "error")


class CollectorFailed(InnoscopeError):
    """Raised if a collector cannot return samples. ``reason`` is one of REASONS, ``words`` is a message."""

    def __init__(self, reason: str, words: str, *, remedy: str | None = None) -> None:
        if reason not in REASONS:
            raise ValueError(f"unknown reason: {reason}")
        super().__init__(words, remedy=remedy)
        self.reason = reason
        self.words = words


@contextmanager
def explaining() -> Iterator[None]:
    """Convert errors that occur while reading a process to CollectorFailed."""
    try:
        yield
    except NoSuchProcess as error:
        raise CollectorFailed("gone", error.what, remedy=error.remedy) from error
    except NoRights as error:
        raise CollectorFailed("rights", error.what, remedy=error.remedy) from error
    except CollectorFailed:
        raise
    except NotRead as error:
        raise CollectorFailed("unsupported", error.what, remedy=error.remedy) from error
    except InnoscopeError as error:
        raise CollectorFailed("error", error.what, remedy=error.remedy) from error
