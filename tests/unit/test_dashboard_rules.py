"""The committed dashboards follow our own rules and those of Grafana's dashboard-linter.

Each test of a linter rule is named after that rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import grafana
import promql
from innoscope.metrics.registry import default

if TYPE_CHECKING:
    from collections.abc import Iterator

BOARDS = grafana.dashboards()
INTERVAL_S = 60
#: The Grafana units that the dashboards use. Grafana shows an unknown unit as text after the number.
UNITS = {"none", "short", "percentunit", "bytes", "Bps", "ops", "s", "dateTimeAsIso"}


@pytest.fixture(params=BOARDS)
def board(request: pytest.FixtureRequest) -> dict[str, Any]:
    return BOARDS[request.param]


def variables(board: dict[str, Any], kind: str = "query") -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in board["templating"]["list"] if one["type"] == kind}


def queries(board: dict[str, Any]) -> Iterator[tuple[str, promql.Use]]:
    for panel in grafana.panels(board):
        for target in panel["targets"]:
            for use in promql.uses(target["expr"].replace("$__rate_interval", f"{INTERVAL_S}s")):
                yield f"{panel['title']}: {target['expr']}", use


def test_template_and_uneditable_dashboard_rules(board: dict[str, Any]) -> None:
    """Check the template rules for datasource, job, instance and on-time-change-reload."""
    [source] = variables(board, "datasource").values()

    assert (source["name"], source["label"], source["query"]) == ("datasource", "Data source", "prometheus")
    for name in ("job", "instance"):
        variable = variables(board)[name]
        assert variable["datasource"]["uid"] == "${datasource}"
        assert variable["label"] == name.title()
        assert variable["multi"]
        assert variable["allValue"] == ".+"
    assert all(variable["refresh"] == 2 for variable in variables(board).values())
    assert board["editable"] is False


def test_template_label_promql_rule(board: dict[str, Any]) -> None:
    for name, variable in variables(board).items():
        inner, _, label = variable["query"]["query"].removeprefix("label_values(").rpartition(", ")
        assert label == f"{name})"
        assert promql.uses(inner)


def test_panel_rules(board: dict[str, Any]) -> None:
    """Check the rules panel-datasource, panel-title-description, panel-units and panel-no-targets."""
    for panel in grafana.panels(board):
        title = panel["title"]
        assert title
        assert "**Bad:**" in panel["description"], title
        assert "**Next:**" in panel["description"], title
        assert panel["datasource"]["uid"] == "${datasource}", title
        assert panel["targets"], title
        if panel["type"] == "heatmap":
            assert panel["options"]["yAxis"]["unit"] in UNITS, title
        else:
            assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, title


def is_own(name: str) -> bool:
    """Return whether a series is about Innoscope itself or about scrapes."""
    own = {metric.exported for metric in default() if metric.own}
    return name in own | {"up"} or name.startswith(("instance:", "scrape_"))


@pytest.mark.parametrize("name", ["job", "instance", "server"])
def test_target_job_and_instance_rule(board: dict[str, Any], name: str) -> None:
    """Check that every selector uses every variable; series about Innoscope do not use ``server``."""
    for where, use in queries(board):
        if name == "server" and is_own(use.name):
            continue
        assert use.matchers.get(name) == ("=~", f"${name}"), where


def test_target_rate_interval_rule(board: dict[str, Any]) -> None:
    for panel in grafana.panels(board):
        for target in panel["targets"]:
            assert target["expr"].count("[") == target["expr"].count("[$__rate_interval]"), target["expr"]


def test_target_counter_agg_rule(board: dict[str, Any]) -> None:
    """Check that rates are computed only from counters, and that counters are used only in rates."""
    for where, use in queries(board):
        counter = use.name.endswith(("_total", "_bucket", "_sum", "_count"))
        rated = bool(use.around) and use.around[-1] in promql.OF_COUNTERS
        assert counter == rated, where


def test_target_histogram_rule(board: dict[str, Any]) -> None:
    """Check that buckets are used only in quantiles and heatmaps."""
    heatmaps = {panel["title"] for panel in grafana.panels(board) if panel["type"] == "heatmap"}
    for where, use in queries(board):
        if use.name.endswith("_bucket"):
            assert "histogram_quantile" in use.around or where.split(":")[0] in heatmaps, where
            assert "le" in use.grouped, where


def test_links_keep_variables_and_time_range(board: dict[str, Any]) -> None:
    [others] = [link for link in board["links"] if link["type"] == "dashboards"]

    assert (others["tags"], others["includeVars"], others["keepTime"]) == (["innoscope"], True, True)
    for panel in grafana.panels(board):
        for link in panel["links"]:
            if link["url"] == "http://${instance}/":
                continue
            uid, _, query = link["url"].removeprefix("/d/").partition("?")
            assert uid in BOARDS
            wanted = variables(BOARDS[uid]).keys() | {"datasource"}
            assert set(query.split("&")) == {"${__url_time_range}"} | {
                f"${{{name}:queryparam}}" for name in wanted
            }


def test_legends_are_distinct(board: dict[str, Any]) -> None:
    for panel in grafana.panels(board):
        if panel["type"] != "table":
            legends = [target["legendFormat"] for target in panel["targets"]]
            assert all(legends), panel["title"]
            assert len(set(legends)) == len(legends), panel["title"]
        drawn = {target["legendFormat"] for target in panel["targets"]}
        for override in panel["fieldConfig"]["overrides"]:
            known = panel["type"] == "table" or "{{zone}}" in drawn
            assert known or override["matcher"]["options"] in drawn, panel["title"]


def test_panels_do_not_overlap_and_ids_are_unique(board: dict[str, Any]) -> None:
    ids = [one["id"] for one in (*board["panels"], *grafana.panels(board))]
    rows = [one for one in board["panels"] if one["type"] == "row"]
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells

    assert len(set(ids)) == len(rows) + len(list(grafana.panels(board)))


def test_uids_and_tags() -> None:
    assert set(BOARDS) == {
        f"innoscope-{name}" for name in ("fleet", "server", "dirty-page", "contention", "agent")
    }
    assert all("innoscope" in board["tags"] for board in BOARDS.values())
    assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS)
