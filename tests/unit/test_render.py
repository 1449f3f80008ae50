"""Render the same synthetic snapshots in each output format."""

from __future__ import annotations

import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.common.errors import InnoscopeError
from innoscope.sampling.fold import Filter, StackReport
from innoscope.sampling.model import Frame, Trust
from innoscope.sampling.render import FORMATS, pprof, render, sink, speedscope, words
from innoscope.sampling.render import json as json_format
from innoscope.sampling.render.text import Detail
from unit.snapshots import IDLE, ROW_LOCK, frames, mixed, snapshot_of, target, thread

if TYPE_CHECKING:
    from innoscope.sampling.model import Snapshot


def report(*snapshots: Snapshot, wanted: Filter | None = None) -> StackReport:
    made = StackReport(target(), wanted)
    for item in snapshots or (mixed(),):
        made.add(item)
    return made


def text(made: StackReport, form: str = "text", **options: Any) -> str:
    return "\n".join(render(made, form, **options))


def test_headline_gives_classes_trust_and_method() -> None:
    assert words.headline(report()) == (
        "6 threads in 4.8 ms: 3 idle, 2 row lock, 1 on CPU · 4 exact, 1 stale, 1 torn · not stopped"
    )


def test_headline_of_several_snapshots_gives_their_time_and_the_filter() -> None:
    made = report(mixed(), snapshot_of(thread(1), taken_at=1_700_000_002.0), wanted=Filter(["row_lock"]))

    assert words.headline(made).startswith("7 threads in 2 snapshots over 2.0 s (4.8 ms each): 4 idle")
    assert words.headline(made).endswith(" · not stopped · showing 2")


def test_headline_says_that_threads_were_stopped() -> None:
    made = report()
    made.method = "ptrace"

    assert words.headline(made).endswith(" · each thread was stopped briefly (ptrace)")


def test_text_is_one_line_per_stack_with_the_count_first() -> None:
    lines = text(
        report(snapshot_of(thread(1), thread(2), notes=("no names; apt install mysqld-dbgsym",)))
    ).splitlines()

    assert lines[1] == "MySQL 5.6.24 · pid 4242 · /tmp/mysql.sock"
    assert lines[2] == "note: no names; apt install mysqld-dbgsym"
    assert lines[-1] == "      2  idle  poll,vio_io_wait,my_net_read,do_command,start_thread"
    assert re.fullmatch(r"threads  wait +stack, innermost function first", lines[-2])


def test_text_marks_unreliable_stacks_and_shows_statements() -> None:
    shown = text(report())

    assert "      2  row_lock  [1 of 2 torn] pthread_cond_wait,os_event_wait_low" in shown
    assert "         # 2× UPDATE `t` SET `a` = ?" in shown
    assert "      1  on_cpu    [stale] btr_cur_search_to_nth_level" in shown


def test_text_limit_says_how_much_is_omitted() -> None:
    lines = text(report(), limit=1).splitlines()

    assert lines[-1] == "… 2 more (3 threads); omit --limit to show all"


def test_text_by_wait_gives_the_share_of_each_class() -> None:
    shown = text(report(), by="wait")

    assert "      3   50.0%  idle      idle: waits for the client's next statement" in shown
    assert "              2  [1 of 2 torn] pthread_cond_wait," in shown


def test_text_by_latch_names_the_latches_that_threads_wait_for() -> None:
    libc = ("libc.so.6!__lll_lock_wait", "libc.so.6!pthread_mutex_lock")
    stack = frames(*libc, "open_table", "open_tables", "do_command")
    waiting = [thread(tid, stack, wait="mutex_wait") for tid in (1, 2, 3)]
    lines = text(report(snapshot_of(*waiting, thread(4))), by="latch", detail=BRIEF).splitlines()

    assert lines[-2] == "      3   75.0%  the table cache (LOCK_open, or its successors), in open_table"
    assert lines[-1].split() == ["3", "open_table,open_tables,do_command"]
    assert text(report(snapshot_of(thread(4))), by="latch").endswith("\nno thread waits for a latch")


def test_text_by_thread_shows_statement_and_frames() -> None:
    shown = text(report(mixed(), mixed()), by="thread")

    assert "thread 5  mysqld  S  torn  row_lock [torn]" in shown
    assert "  connection 5  app@localhost  shop  Query · updating  3 s\n  UPDATE `t` SET `a` = ?" in shown
    assert "  #0   poll  libc.so.6\n  #1   vio_io_wait  mysqld" in shown


BRIEF = Detail(idle=False, libraries=False)


@pytest.mark.parametrize("by", ["stack", "wait", "thread"])
def test_text_hides_idle_stacks_and_says_how_many(by: str) -> None:
    lines = text(report(), by=by, detail=BRIEF).splitlines()

    assert lines[-1] == "3 idle hidden, --all shows them"
    assert not [line for line in lines[3:-1] if "idle" in line]
    assert sum("lock_wait_suspend_thread" in line for line in lines) == (2 if by == "thread" else 1)


def test_text_names_each_idle_class_and_omits_an_empty_table() -> None:
    made = report(snapshot_of(thread(1), thread(2), thread(3, wait="background_idle")))

    assert text(made, detail=BRIEF).splitlines()[2:] == [
        "", "2 idle, 1 background idle hidden, --all shows them"
    ]  # fmt: skip


def test_a_thread_that_was_idle_only_once_is_shown_with_all_its_waits() -> None:
    shown = text(
        report(snapshot_of(thread(1)), snapshot_of(thread(1, ROW_LOCK, "row_lock"))),
        by="thread",
        detail=BRIEF,
    )

    assert "  1 of 2 snapshots: idle" in shown
    assert "hidden" not in shown


def test_the_limit_applies_to_the_stacks_that_are_not_hidden() -> None:
    lines = text(report(), limit=1, detail=BRIEF).splitlines()

    assert lines[-2:] == [
        "… 1 more (1 threads); omit --limit to show all", "3 idle hidden, --all shows them"
    ]  # fmt: skip


@pytest.mark.parametrize("by", ["stack", "wait"])
def test_text_lines_begin_at_the_servers_first_function(by: str) -> None:
    shown = text(report(), by=by, detail=BRIEF)

    assert "[1 of 2 torn] os_event_wait_low,lock_wait_suspend_thread,do_command" in shown
    assert "pthread_cond_wait" not in shown
    assert "pthread_cond_wait" in text(report(), by=by)


def test_kernel_functions_are_omitted_too_and_equal_stacks_become_one_line() -> None:
    kernel = Frame("futex_wait", "[kernel]", 1, kernel=True)
    timed = (kernel, Frame("pthread_cond_timedwait", "libc.so.6", 2), *ROW_LOCK[1:])
    made = report(snapshot_of(thread(1, ROW_LOCK, "row_lock"), thread(2, timed, "row_lock")))
    lines = text(made, detail=BRIEF).splitlines()

    assert lines[-1] == "      2  row_lock  os_event_wait_low,lock_wait_suspend_thread,do_command"
    assert [group.count for group in made.fold.by_stack()] == [1, 1], "the report itself is unchanged"


@pytest.mark.parametrize("wait", ["on_cpu", "other"])
def test_library_functions_are_shown_if_the_class_does_not_explain_them(wait: str) -> None:
    made = report(snapshot_of(thread(1, frames("libc.so.6!memcpy", "row_sel"), wait)))

    assert "memcpy,row_sel" in text(made, detail=BRIEF)


def test_a_stack_without_a_function_of_the_server_is_not_shortened() -> None:
    made = report(snapshot_of(thread(1, frames("libc.so.6!poll", "libc.so.6!start_thread"), "row_lock")))

    assert "poll,start_thread" in text(made, detail=BRIEF)


def test_threads_are_listed_with_all_their_functions() -> None:
    assert "#0   pthread_cond_wait  libc.so.6" in text(report(), by="thread", detail=BRIEF)


@pytest.mark.parametrize("form", ["tree", "folded", "speedscope", "html"])
def test_all_other_formats_omit_nothing(form: str) -> None:
    assert text(report(), form, detail=BRIEF) == text(report(), form)


def test_text_by_thread_counts_the_snapshots_of_each_class() -> None:
    shown = text(report(snapshot_of(thread(1)), snapshot_of(thread(1, ROW_LOCK, "row_lock"))), by="thread")

    assert "  1 of 2 snapshots: idle" in shown
    assert "  1 of 2 snapshots: row_lock" in shown


def test_control_characters_do_not_reach_the_terminal() -> None:
    shown = text(report(snapshot_of(thread(1, query="SELECT \x1b[31m\n ?"))))

    assert r"SELECT \x1b[31m ?" in shown
    assert "\x1b" not in shown


def test_a_function_without_a_symbol_is_shown_by_its_address() -> None:
    assert "libc.so.6+0x88d3a" in text(report(snapshot_of(thread(1, (Frame(None, "libc.so.6", 0x88D3A),)))))


def test_tree_starts_at_the_root() -> None:
    lines = text(report(), "tree").splitlines()[3:]

    assert lines[0] == "      6  all threads"
    assert lines[1] == "      3  ├─ start_thread"
    assert lines[2] == "      3  │  do_command"
    assert "poll  ← idle 3" in lines[5]
    assert any("─ [stale]" in line for line in lines)


def test_tree_of_a_stack_with_5000_frames_is_complete() -> None:
    deep = tuple(Frame(f"f{number}", "mysqld", number) for number in range(5000))

    assert len(text(report(snapshot_of(thread(1, deep))), "tree").splitlines()) > 5000


def test_folded_lines_run_from_root_to_leaf_and_mark_unreliable_ones() -> None:
    assert text(report(), "folded").splitlines() == [
        "start_thread;do_command;my_net_read;vio_io_wait;poll 3",
        "do_command;lock_wait_suspend_thread;os_event_wait_low;pthread_cond_wait 1",
        "[torn];do_command;lock_wait_suspend_thread;os_event_wait_low;pthread_cond_wait 1",
        "[stale];do_command;row_search_mvcc;btr_cur_search_to_nth_level 1",
    ]


def test_json_is_one_line_with_all_values() -> None:
    made = json.loads(json_format.line(mixed()))

    assert made["schema"] == 1
    assert made["tally"] == {
        "threads": 6, "exact": 4, "inferred": 0, "on_cpu": 0, "stale": 1, "torn": 1, "truncated": 0,
        "incomplete": 0,
    }  # fmt: skip
    frame = {"function": "pthread_cond_wait", "module": "libc.so.6", "offset": 4096}
    assert made["threads"][4]["frames"][0] == frame | {"inlined": False, "kernel": False}
    assert made["threads"][4]["query"]["digest_text"] == "UPDATE `t` SET `a` = ?"
    assert "\n" not in json_format.line(mixed())


def test_json_has_the_keys_of_the_documentation() -> None:
    described = Path(__file__).parents[2].joinpath("docs/json.md").read_text(encoding="utf-8")
    example = json.loads(re.search(r"```json\n(.*?)```", described, re.DOTALL)[1])  # type: ignore[index]
    made = json_format.document(mixed())

    assert example.keys() == made.keys()
    assert example["target"].keys() == made["target"].keys()
    assert example["tally"].keys() == made["tally"].keys()
    assert example["threads"][0].keys() == made["threads"][4].keys()
    assert example["threads"][0]["frames"][0].keys() == made["threads"][4]["frames"][0].keys()
    assert example["threads"][0]["query"].keys() == made["threads"][4]["query"].keys()


def test_speedscope_is_consistent() -> None:
    made = speedscope.document(report())
    frames = made["shared"]["frames"]

    assert made["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert [profile["name"] for profile in made["profiles"]] == ["all threads", "idle", "row lock", "on CPU"]
    for profile in made["profiles"]:
        assert profile["type"] == "sampled"
        assert profile["unit"] == "none"
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
        assert all(0 <= index < len(frames) for sample in profile["samples"] for index in sample)
    first = [frames[index]["name"] for index in made["profiles"][0]["samples"][0]]
    assert first == [frame.label for frame in reversed(IDLE)]
    assert {"name": "[stale]"} in frames


def test_pprof_samples_have_class_and_trust_as_labels() -> None:
    made = list(pprof.samples(report()))

    assert [(sample.count, sample.labels) for sample in made] == [
        (3, {"wait": "idle"}),
        (1, {"wait": "row_lock"}),
        (1, {"wait": "row_lock", "trust": "torn"}),
        (1, {"wait": "on_cpu", "trust": "stale"}),
    ]
    assert made[2].frames[-1].function == "[torn]"


def test_pprof_is_a_gzipped_protobuf() -> None:
    assert b"do_command" in gzip.decompress(pprof.encode(report()))


class Page(HTMLParser):
    """A parser that collects the URLs that a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "data", "action", "srcset") and not (value or "").startswith("#"):
                self.loads.append(f"{tag} {name}={value}")


def test_html_loads_nothing_and_escapes_untrusted_text() -> None:
    hostile = snapshot_of(thread(1, query="<script>alert(1)</script>"), notes=("<b>note</b>",))

    page = text(report(mixed(), hostile), "html")
    reader = Page()
    reader.feed(page)

    assert reader.loads == []
    assert set(re.findall(r"url\((.)", page)) <= {"#"}
    assert "@import" not in page
    assert "<script>alert" not in page
    assert "&lt;b&gt;note" in page
    assert page.count("<svg version") == 1
    assert "7 threads in 2 snapshots" in page
    assert "[stale]" in page


@pytest.mark.parametrize("form", [form for form in FORMATS if form not in ("json", "pprof")])
def test_every_format_renders_an_empty_report(form: str) -> None:
    made = report(wanted=Filter(["purge"]))

    assert made.shown == 0
    text(made, form)


@pytest.mark.parametrize("trust", [Trust.STALE, Trust.TORN, Trust.TRUNCATED, Trust.INCOMPLETE])
@pytest.mark.parametrize("form", [form for form in FORMATS if form not in ("json", "pprof")])
def test_every_format_marks_every_unreliable_stack(form: str, trust: Trust) -> None:
    assert f"[{trust}]" in text(report(snapshot_of(thread(1, trust=trust))), form)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown text format"):
        text(report(), "csv")


def test_output_files_are_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")

    out = sink.open_sink(path)
    out.line("half")
    out.__exit__(RuntimeError, RuntimeError(), None)
    assert path.read_text() == "old"

    with sink.open_sink(path) as out:
        out.line("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new\n"
    assert [item.name for item in tmp_path.iterdir()] == ["out.txt"]


def test_an_unwritable_output_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InnoscopeError, match="cannot write"):
        sink.open_sink(tmp_path / "missing" / "out.txt")


def test_a_device_is_written_in_place() -> None:
    with sink.open_sink(Path("/dev/null")) as out:
        out.line("gone")
    assert Path("/dev/null").is_char_device()
