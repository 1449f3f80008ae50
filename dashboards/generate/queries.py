"""PromQL over Innoscope's metrics: every selector has the dashboard's variables, every counter its rate.

Names are those of ``probes/catalog/metrics.yaml``, without prefix and suffix; another one is a KeyError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.metrics.registry import default

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What each series is chosen by; those about Innoscope itself have no ``server``.
OWN: Final = 'job=~"$job", instance=~"$instance"'
SERVER: Final = f'{OWN}, server=~"$server"'
_INTERVAL: Final = "[$__rate_interval]"


def series(name: str, *matchers: str, part: str = "") -> str:
    """The series of a metric; ``part`` of a histogram: ``_bucket``, ``_sum`` or ``_count``."""
    metric = default()[name]
    scope = OWN if metric.own else SERVER
    return f"{metric.exported}{part}{{{', '.join((scope, *matchers))}}}"


def _by(labels: Sequence[str]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def level(name: str, *matchers: str, by: Sequence[str] = (), how: str = "sum") -> str:
    """A gauge, aggregated."""
    return f"{how}{_by(by)} ({series(name, *matchers)})"


def rate(name: str, *matchers: str, by: Sequence[str] = (), part: str = "") -> str:
    """How fast a counter grows, a second."""
    return f"sum{_by(by)} (rate({series(name, *matchers, part=part)}{_INTERVAL}))"


def increase(name: str, *matchers: str, by: Sequence[str] = ()) -> str:
    """By how much a counter grew in each interval."""
    return f"sum{_by(by)} (increase({series(name, *matchers)}{_INTERVAL}))"


def calls(name: str, *matchers: str, by: Sequence[str] = ()) -> str:
    """Observations of a histogram a second."""
    return rate(name, *matchers, by=by, part="_count")


def inside(name: str, *matchers: str, by: Sequence[str] = ()) -> str:
    """Threads that are in it on average: seconds spent a second."""
    return rate(name, *matchers, by=by, part="_sum")


def quantile(share: float, name: str, *matchers: str, by: Sequence[str] = ()) -> str:
    """A quantile of a histogram; NaN while nothing is observed."""
    return f"histogram_quantile({share}, {rate(name, *matchers, by=('le', *by), part='_bucket')})"


def buckets(name: str, *matchers: str) -> str:
    """A histogram's buckets, for a heatmap."""
    return rate(name, *matchers, by=("le",), part="_bucket")


def ratio(above: str, below: str) -> str:
    """One query over another."""
    return f"{above} / {below}"


def recorded(rule: str, *matchers: str, by: Sequence[str] = ("instance", "server")) -> str:
    """The worst value of a recording rule for each server; ``rule`` is without ``server:innoscope_``.

    The rules are those of dashboards/alerts/recording.yaml.
    """
    own = rule.startswith("instance:")
    name = rule if own else f"server:innoscope_{rule}"
    return f"max{_by(by)} ({name}{{{', '.join((OWN if own else SERVER, *matchers))}}})"
