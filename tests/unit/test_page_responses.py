"""Test the responses to browsers: pages with their headers, cacheable files, and JSON documents."""

from __future__ import annotations

import gzip
import json
import math
import re
from email.message import Message
from http import HTTPStatus
from importlib import resources

import pytest

from innoscope.common.samples import Histogram
from innoscope.daemon.agent import state
from innoscope.daemon.agent.collect import Scrape, ServerState
from innoscope.daemon.http import landing, page_files
from innoscope.daemon.http.answers import accepts_gzip, as_json, compressed, unless_cached
from innoscope.daemon.http.roles import Client, Role
from innoscope.daemon.http.server import Request, Response
from innoscope.metrics import registry
from innoscope.metrics.merge import ExportedSeries
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.fold import StackReport
from innoscope.sampling.model import Frame, Trust
from innoscope.sampling.render.live_page import compact
from unit.snapshots import target

PAGE = resources.files("innoscope.daemon.http.page")


def request_for(path: str = "/", **headers: str) -> Request:
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return Request(path, {}, message, Client(Role.STACKS))


def test_the_page_has_no_inline_code_and_refers_to_existing_files_only() -> None:
    page = landing.page(
        "1.2", "it is <down>", [("a<b", "what", True, [("sql", "denied: <x>"), ("waits", None)])], []
    )
    assert "<b>" not in page.replace("a&lt;b", "")
    assert "it is &lt;down&gt;" in page
    assert '<span class="bad">denied: &lt;x&gt;</span>' in page
    assert not re.findall(r"<script(?![^>]* src=)|<style|\son\w+=|style=|https?:|\$", page)
    named = set(re.findall(r'(?:src|href)="(/page/[^"]+)"', page))
    assert named == page_files.routes().keys()


def test_scripts_import_only_each_other_and_set_no_markup() -> None:
    names = {file.name for file in PAGE.iterdir()}
    for name in (name for name in names if name.endswith(".js")):
        text = (PAGE / name).read_text()
        assert {one.removeprefix("./") for one in re.findall(r'from "([^"]+)"', text)} <= names, name
        assert not re.findall(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function", text
        ), name


def test_files_are_cacheable_because_their_address_has_their_version() -> None:
    answer = page_files.routes()[f"{page_files.base()}/main.js"]
    plain = answer(request_for())
    small = answer(request_for(Accept_Encoding="br, gzip"))
    assert plain.content_type == "text/javascript; charset=utf-8"
    assert "immutable" in plain.headers["Cache-Control"]
    assert gzip.decompress(small.body) == plain.body
    assert small.headers["Content-Encoding"] == "gzip"


@pytest.mark.parametrize(
    ("header", "takes"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("gzip;q=0", False), ("br", False), ("", False)],
)
def test_large_responses_are_compressed_on_request(header: str, takes: bool) -> None:
    request = request_for(Accept_Encoding=header)
    assert accepts_gzip(request) == takes
    assert ("Content-Encoding" in compressed(request, Response(b"a" * 2000)).headers) == takes
    assert compressed(request, Response(b"short")) == Response(b"short")


def test_a_known_etag_is_answered_with_not_modified() -> None:
    first = unless_cached(request_for(), as_json({"a": 1}))
    again = unless_cached(request_for(If_None_Match=f'"x", {first.headers["ETag"]}'), as_json({"a": 1}))
    other = unless_cached(request_for(If_None_Match=first.headers["ETag"]), as_json({"a": 2}))
    assert (again.status, again.body) == (HTTPStatus.NOT_MODIFIED, b"")
    assert (other.status, json.loads(other.body)) == (HTTPStatus.OK, {"a": 2})


def test_the_state_document_describes_each_server() -> None:
    declared = registry.default()
    series = [
        ExportedSeries(declared[name], "a", labels, value)
        for name, labels, value in (
            ("threads", ("idle", "client"), 4), ("threads", ("idle", "background"), 3),
            ("threads", ("spin", "client"), 0), ("connections", (), 12),
            ("redo_full_seconds", (), math.inf), ("probe_attached", ("p",), 1), ("probe_attached", ("q",), 0),
            ("toggle_in_force", ("read_ahead", "sql"), 1), ("toggle_info", ("read_ahead", "off", "ann"), 1),
            ("toggle_since_timestamp_seconds", ("read_ahead",), 50.0),
            ("fsync_seconds", ("data",), Histogram((1,), 1)),
        )
    ]  # fmt: skip
    series.append(ExportedSeries(declared["own_cpu_seconds"], "", ("agent",), 2.5))
    view = ServerState("a", "mysql 5.6", True, (("sql", None), ("waits", "gone: away")))
    scrape = Scrape(0.0, tuple(series), (view,))
    assert state.own(scrape) == {"agent": {"cpu_seconds": 2.5}}
    assert state.servers(None) == []
    assert state.servers(scrape) == [
        {
            "name": "a",
            "what": "mysql 5.6",
            "up": True,
            "collectors": [
                {"name": "sql", "ok": True, "why": None},
                {"name": "waits", "ok": False, "why": "gone: away"},
            ],
            "toggles": [
                {
                    "toggle": "read_ahead",
                    "value": "off",
                    "way": "sql",
                    "who": "ann",
                    "since": 50.0,
                    "until": None,
                }
            ],
            "probes": {"attached": 1, "known": 2},
            "threads": {"idle": 7},
            "now": {"connections": 12},
        }
    ]


def test_compact_stacks_contain_each_name_once() -> None:
    report = StackReport(target())
    report.snapshots, report.durations_ms = 2, [5.0]
    inner, outer = Frame("inner", "m", 1), Frame("outer", "m", 2)
    report.count("idle", Trust.EXACT, ("inner", "outer"), (inner, outer), 6)
    report.count("spin", Trust.EXACT, ("outer",), (outer,), 3)
    report.count("spin", Trust.TORN, ("outer",), (outer,), 1)
    document = compact(report)
    assert (document["waits"], document["names"]) == (["idle", "spin"], ["inner", "outer"])
    assert document["stacks"] == [[0, 6, "", 0, 1], [1, 3, "", 1], [1, 1, "torn", 1]]
    assert (document["looks"], document["threads"]) == (2, 10)


def test_each_wait_class_has_a_color() -> None:
    known = set(re.findall(r"(\w+): \[\d+, \d+, \d+\]", (PAGE / "colors.js").read_text()))
    assert known == set(default_classifier().catalog.classes)
