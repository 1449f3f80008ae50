"""The committed dashboards follow our own rules and the rules of Grafana's dashboard-linter.

Each test of a linter rule is named after that rule.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest

import grafana
import promql
from generate import wait_colors
from innoscope.metrics.registry import default
from innoscope.sampling.classify import default_classifier

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

BOARDS = grafana.dashboards()
AGENT_PAGE = "http://${instance}/#server=${server:percentencode}"
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
    """Check that every selector uses the variable; ``server`` is not required for Innoscope's own series."""
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
            if link["url"] == AGENT_PAGE:
                continue
            uid, _, query = link["url"].removeprefix("/d/").partition("?")
            assert uid in BOARDS
            wanted = variables(BOARDS[uid]).keys() | {"datasource"}
            assert set(query.split("&")) == {"${__url_time_range}"} | {
                f"${{{name}:queryparam}}" for name in wanted
            }


def test_dashboards_of_one_server_link_to_its_top_statements() -> None:
    """Check the link to the agent's page. Statements have no metric, because their number is unlimited."""
    for uid in ("server", "dirty-page", "contention", "replication"):
        [link] = [one for one in BOARDS[f"innoscope-{uid}"]["links"] if one["type"] == "link"]
        assert (link["title"], link["url"]) == ("Top statements and stacks", AGENT_PAGE)
    page = (files("innoscope") / "daemon/http/page/main.js").read_text()
    assert "wanted().server" in page


def test_legends_are_distinct(board: dict[str, Any]) -> None:
    for panel in grafana.panels(board):
        if panel["type"] != "table":
            legends = [target["legendFormat"] for target in panel["targets"]]
            assert all(legends), panel["title"]
            assert len(set(legends)) == len(legends), panel["title"]
        drawn = {target["legendFormat"] for target in panel["targets"]}
        for override in panel["fieldConfig"]["overrides"]:
            known = panel["type"] == "table" or drawn & {"{{zone}}", "{{wait}}"}
            assert known or override["matcher"]["options"] in drawn, panel["title"]


def test_legends_of_graphs_have_values(board: dict[str, Any]) -> None:
    for panel in grafana.panels(board):
        if panel["type"] == "timeseries":
            legend = panel["options"]["legend"]
            assert legend["showLegend"], panel["title"]
            assert {"lastNotNull", "max"} <= set(legend["calcs"]), panel["title"]


def test_wait_classes_have_the_colors_of_the_live_page(board: dict[str, Any]) -> None:
    page = wait_colors.palette()
    assert page.keys() == default_classifier().catalog.classes.keys()
    assert (page["row_lock"], page["on_cpu"]) == ("#efa9a4", "#24bc4d")  # hsl(4 70% 79%), hsl(136 68% 44%)
    for panel in grafana.panels(board):
        if "{{wait}}" not in {target["legendFormat"] for target in panel["targets"]}:
            continue
        [expr] = [target["expr"] for target in panel["targets"]]
        colors = {
            override["matcher"]["options"]: override["properties"][0]["value"]["fixedColor"]
            for override in panel["fieldConfig"]["overrides"]
        }
        assert colors.keys() == _shown(expr, page.keys()), panel["title"]
        assert colors == {name: page[name] for name in colors}, panel["title"]


def _shown(expr: str, classes: Collection[str]) -> set[str]:
    """Return the wait classes that a query can return."""
    uses = [use for use in promql.uses(grafana.filled(expr)) if "wait" in use.matchers]
    for use in uses:
        operator, value = use.matchers["wait"]
        chosen = {name for name in classes if re.fullmatch(value, name)}
        return chosen if operator == "=~" else set(classes) - chosen
    # The recording rule of the fleet's wait classes excludes idle threads.
    return set(classes) - ({"idle", "background_idle"} if "server_wait:" in expr else set())


def test_annotations_mark_restarts_toggles_incidents_and_alerts(board: dict[str, Any]) -> None:
    marks = {one["name"]: one for one in board["annotations"]["list"]}

    assert set(marks) == {"Restarts", "Toggles", "Incidents", "Alerts"}
    for name, one in marks.items():
        [use] = promql.uses(grafana.filled(one["target"]["expr"]))
        assert one["datasource"]["uid"] == "${datasource}"
        assert (one["expr"], one["step"]) == (one["target"]["expr"], one["target"]["interval"])
        assert {"job", "instance"} <= use.matchers.keys(), name
        assert one["useValueForTime"] is use.name.endswith(("_timestamp_seconds", "_time_seconds")), name
        if one["useValueForTime"]:
            assert use.name in {metric.exported for metric in default()}
            assert "* 1000" in one["target"]["expr"], "Grafana expects milliseconds"


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


def test_fewer_than_twenty_panels_are_visible(board: dict[str, Any]) -> None:
    """Check that the other panels are in collapsed rows."""
    assert len([panel for panel in board["panels"] if panel["type"] != "row"]) < 20
    for row in (one for one in board["panels"] if one["type"] == "row"):
        assert row["collapsed"] is bool(row["panels"]), row["title"]


def test_panels_that_are_empty_by_default_are_not_visible() -> None:
    hidden = (
        "statement_seconds",
        "read_seconds",
        "latch_spin_waits",
        "galera_",
        "group_",
        "semisync_",
        "push_",
    )
    for uid, board in BOARDS.items():
        for panel in board["panels"]:
            exprs = " ".join(target["expr"] for target in panel.get("targets", []))
            used = [name for name in hidden if f"innoscope_{name}" in exprs]
            assert not used, f"{uid} / {panel['title']}"


def test_tiles_say_what_is_bad(board: dict[str, Any]) -> None:
    """Check that the color of each number follows from limits."""
    for panel in grafana.panels(board):
        if panel["type"] == "stat":
            defaults = panel["fieldConfig"]["defaults"]
            assert len(defaults["thresholds"]["steps"]) > 1 or defaults["mappings"], panel["title"]
            assert "redo_full_seconds" not in panel["targets"][0]["expr"], "depends on the checkpoint age"


@pytest.mark.parametrize("uid", ["innoscope-fleet", "innoscope-server"])
def test_a_timeline_of_states_is_on_top(uid: str) -> None:
    panels = list(grafana.panels(BOARDS[uid]))
    exprs = " ".join(target["expr"] for target in panels[0]["targets"])

    assert panels[0]["type"] == "state-timeline"
    assert "innoscope_finding_score" in exprs or "server:innoscope_state:score" in exprs
    assert min(panel["gridPos"]["y"] for panel in panels) == panels[0]["gridPos"]["y"]


def test_the_fleet_table_lists_servers_that_are_down_first() -> None:
    [table] = [one for one in grafana.panels(BOARDS["innoscope-fleet"]) if one["type"] == "table"]

    assert table["options"]["sortBy"][0] == {"displayName": "state", "desc": True}
    assert "server:innoscope_state:score" in table["targets"][0]["expr"]


def test_uids_and_tags() -> None:
    assert set(BOARDS) == {
        f"innoscope-{name}"
        for name in ("fleet", "server", "dirty-page", "contention", "replication", "agent")
    }
    assert all("innoscope" in board["tags"] for board in BOARDS.values())
    assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS)


def test_ranges_of_states_have_an_end(board: dict[str, Any]) -> None:
    """Check that Grafana, which compares a missing end as if it were 0, finds the state of every value."""
    for panel in grafana.panels(board):
        mappings = panel["fieldConfig"]["defaults"].get("mappings", [])
        if not mappings:
            continue
        ranges = [(one["options"]["from"], one["options"]["to"]) for one in mappings]
        assert all(low < high for low, high in ranges), panel["title"]
        assert [low for low, _ in ranges] == sorted((low for low, _ in ranges), reverse=True)
        assert [low for low, _ in ranges[:-1]] == [high for _, high in ranges[1:]], panel["title"]
        assert len({one["options"]["result"]["index"] for one in mappings}) == len(mappings)
