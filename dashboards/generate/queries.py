"""Build PromQL queries for Innoscope's metrics. Every selector contains the dashboard's variables.

Metrics are named as in ``probes/catalog/metrics.yaml``, without prefix or suffix. The functions raise
KeyError for unknown names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.metrics.registry import default

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Label matchers that all selectors contain. Series about Innoscope itself do not have the ``server`` label.
OWN: Final = 'job=~"$job", instance=~"$instance"'
SERVER: Final = f'{OWN}, server=~"$server"'
_INTERVAL: Final = "[$__rate_interval]"


def series(name: str, *matchers: str, part: str = "") -> str:
    """Return the selector of a metric. ``part`` is for histograms: ``_bucket``, ``_sum`` or ``_count``."""
    metric = default()[name]
    scope = OWN if metric.own else SERVER
    return f"{metric.exported}{part}{{{', '.join((scope, *matchers))}}}"


def _by(labels: Sequence[str]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def level(name: str, *matchers: str, by: Sequence[str] = (), aggregate: str = "sum") -> str:
    """Return a query for the aggregated value of a gauge."""
    return f"{aggregate}{_by(by)} ({series(name, *matchers)})"


def rate(name: str, *matchers: str, by: Sequence[str] = (), part: str = "") -> str:
    """Return a query for the per-second rate of a counter."""
    return f"sum{_by(by)} (rate({series(name, *matchers, part=part)}{_INTERVAL}))"


def increase(name: str, *matchers: str, by: Sequence[str] = ()) -> str:
    """Return a query for the increase of a counter in each interval."""
    return f"sum{_by(by)} (increase({series(name, *matchers)}{_INTERVAL}))"


def calls(name: str, *matchers: str, by: Sequence[str] = ()) -> str:
    """Return a query for a histogram's observations per second."""
    return rate(name, *matchers, by=by, part="_count")


def inside(name: str, *matchers: str, by: Sequence[str] = ()) -> str:
    """Return a query for the mean number of threads inside a measured function (seconds per second)."""
    return rate(name, *matchers, by=by, part="_sum")


def quantile(share: float, name: str, *matchers: str, by: Sequence[str] = ()) -> str:
    """Return a query for a quantile of a histogram. Without observations, the quantile is NaN."""
    return f"histogram_quantile({share}, {rate(name, *matchers, by=('le', *by), part='_bucket')})"


def buckets(name: str, *matchers: str) -> str:
    """Return a query for the rates of a histogram's buckets, for a heatmap."""
    return rate(name, *matchers, by=("le",), part="_bucket")


def ratio(above: str, below: str) -> str:
    """Return a query that divides ``above`` by ``below``."""
    return f"{above} / {below}"


def recorded(rule: str, *matchers: str, by: Sequence[str] = ("instance", "server")) -> str:
    """Return a query for a recording rule's maximum per server.

    The rules are in dashboards/alerts/recording.yaml. ``rule`` is a rule's name without the prefix
    ``server:innoscope_``, or a complete name that begins with ``instance:``.
    """
    own = rule.startswith("instance:")
    name = rule if own else f"server:innoscope_{rule}"
    return f"max{_by(by)} ({name}{{{', '.join((OWN if own else SERVER, *matchers))}}})"
