"""Test the rules of waits.yaml, and the code that applies them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from golden import store
from innoscope.common.errors import BadFile
from innoscope.common.schema import convert
from innoscope.sampling import descriptors, wait_catalog
from innoscope.sampling.classify import (
    WaitClassifier,
    default_classifier,
    label,
    server_frames,
    server_functions,
)
from unit.snapshots import frames

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = {
    "row_lock": {"label": "row lock", "about": "a", "state": "sleeping"},
    "spin": {"label": "spin", "about": "b", "state": "running"},
    "io": {"label": "input and output", "about": "c"},
    "on_cpu": {"label": "on CPU", "about": "d"},
    "other": {"label": "other", "about": "e"},
}


def rules(*given: dict[str, Any], libraries: tuple[str, ...] = ("libc.so*",)) -> WaitClassifier:
    data = {"version": 1, "classes": CLASSES, "libraries": list(libraries), "rules": list(given)}
    return WaitClassifier(convert(data, wait_catalog.WaitCatalog, "waits.yaml"))


def test_first_matching_rule_wins() -> None:
    classifier = rules({"class": "row_lock", "frames": ["a"]}, {"class": "io", "frames": ["b"]})

    assert classifier.classify(frames("b", "a")) == "row_lock"


@pytest.mark.parametrize(
    ("rule", "stack", "matches"),
    [
        ({"frames": ["lock_*wait"]}, ("lock_rec_wait",), True),
        ({"frames": ["lock_*wait"]}, ("my_lock_wait",), False),
        ({"frames": ["/x[0-9]+/"]}, ("x12",), True),
        ({"frames": ["/x[0-9]+/"]}, ("xy",), False),
        ({"frames": ["a"], "also": ["b"], "not": ["c"]}, ("a", "b"), True),
        ({"frames": ["a"], "also": ["b"], "not": ["c"]}, ("a",), False),
        ({"frames": ["a"], "also": ["b"], "not": ["c"]}, ("a", "b", "c"), False),
        ({"leaf": ["fsync"]}, ("libc.so.6!fsync", "my_sync"), True),
        ({"leaf": ["inner"]}, ("libc.so.6!poll", "inner", "outer"), True),
        ({"leaf": ["inner"]}, ("other_thing", "inner"), False),
        ({"leaf": ["inner"]}, ("", "inner"), False),
    ],
)
def test_rule_can_require_frames(rule: dict[str, Any], stack: tuple[str, ...], matches: bool) -> None:
    classifier = rules({"class": "io"} | rule)

    assert classifier.classify(frames(*stack)) == ("io" if matches else "other")


@pytest.mark.parametrize(
    ("rule", "thread", "matches"),
    [
        ({"syscall": ["fsync"], "file": ["redo"]}, {"syscall": "fsync", "file": "redo"}, True),
        ({"syscall": ["fsync"], "file": ["redo"]}, {"syscall": "fsync", "file": "data"}, False),
        ({"syscall": ["fsync"], "file": ["redo"]}, {"syscall": "pwrite64", "file": "redo"}, False),
        ({"syscall": ["fsync"], "file": ["redo"]}, {}, False),
        ({"comm": ["ib_log_*"]}, {"comm": "ib_log_flush"}, True),
        ({"comm": ["ib_log_*"]}, {"comm": "mysqld"}, False),
    ],
)
def test_rule_can_require_a_system_call_a_file_or_a_thread_name(
    rule: dict[str, Any], thread: dict[str, str], matches: bool
) -> None:
    classifier = rules({"class": "io"} | rule)

    assert classifier.classify((), **thread) == ("io" if matches else "other")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("patterns", "names", "others"),
    [
        (["ab"], ["ab"], ["a", "abc", "xab"]),
        (["a*b", "c"], ["ab", "axxb", "aéb", "c"], ["abc", "xab", "cc", "a\nb"]),
        (["*ab*ab*"], ["abab", "xabyabz"], ["ab", "aba"]),
        (["a?c"], ["abc", "aéc"], ["ac", "abbc"]),
        (["a.c", "*(*", "[x]"], ["a.c", "f(int)", "[x]"], ["abc", "x"]),
        (["/a(b|c)+/", "/d|e/"], ["abcb", "d", "e"], ["a", "de"]),
    ],
)
def test_list_matches_if_one_of_its_patterns_does(
    patterns: list[str], names: list[str], others: list[str]
) -> None:
    classifier = rules({"class": "io", "frames": patterns, "file": ["redo"]})
    found = [name for name in names + others if classifier.classify(frames(name), file="redo") == "io"]
    assert found == names


@pytest.mark.parametrize(
    "suffix",
    [".isra.3", ".part.0.constprop.12", ".lto_priv.0", ".clone.3", " [clone .cold]", "@@GLIBC_2.3.2"],
)
def test_compiler_suffixes_are_ignored(suffix: str) -> None:
    assert rules({"class": "io", "frames": ["fil_io"]}).classify(frames("fil_io" + suffix)) == "io"


def test_state_of_a_class_limits_its_rules() -> None:
    classifier = rules({"class": "row_lock", "frames": ["a"]}, {"class": "spin", "frames": ["a"]})

    assert classifier.classify(frames("a")) == "row_lock"
    assert classifier.classify(frames("a"), running=True) == "spin"


def test_stale_stack_of_a_running_thread_is_on_cpu() -> None:
    classifier = rules({"class": "io", "frames": ["a"]})

    assert classifier.classify(frames("a"), running=True) == "io"
    assert classifier.classify(frames("a"), running=True, stale=True) == "on_cpu"


def test_thread_without_a_matching_rule_is_other_or_on_cpu() -> None:
    classifier = rules({"class": "io", "frames": ["a"]})

    assert classifier.classify(frames("b")) == "other"
    assert classifier.classify((), running=True) == "on_cpu"


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"class": "nothing", "frames": ["a"]}, "rules[0]: unknown class 'nothing'"),
        ({"class": "io", "frames": ["/(/"]}, "rules[0]: malformed pattern '/(/'"),
        ({"class": "io", "frames": ["/(?P<a>b)/", "/(?P<a>c)/"]}, "rules[0]: malformed patterns: "),
        ({"class": "io", "comm": ["a", "/[/"]}, "rules[0]: malformed pattern '/[/'"),
        ({"class": "io", "syscall": ["fsink"]}, "rules[0]: unknown system call 'fsink'"),
        ({"class": "io", "file": ["tape"]}, "rules[0]: unknown kind of file 'tape'"),
        ({"class": "io", "state": "dead", "frames": ["a"]}, "rules[0].state: Invalid enum value 'dead'"),
        ({"class": "io", "not": ["a"]}, "rules[0]: has no condition"),
    ],
)
def test_invalid_rule_is_named(rule: Any, problem: str) -> None:
    data = {"version": 1, "classes": CLASSES, "rules": [rule]}

    with pytest.raises(BadFile) as caught:
        convert(data, wait_catalog.WaitCatalog, "waits.yaml")
    assert caught.value.what.startswith(f"waits.yaml: {problem}")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": 2}, "version: Invalid enum value 2"),
        ({"classes": {}}, "class on_cpu is missing"),
        ({"classes": CLASSES | {"Bad-Name": {"label": "a", "about": "b"}}}, "classes.Bad-Name: "),
        ({"classes": CLASSES | {"x": {"label": "", "about": "y"}}}, "classes.x.label: .*length >= 1"),
        ({"classes": CLASSES | {"x": {"label": "a", "about": "b", "state": "c"}}}, "classes.x.state: "),
    ],
)
def test_invalid_catalog_is_named(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadFile, match=problem):
        convert(
            {"version": 1, "classes": CLASSES, "rules": []} | change, wait_catalog.WaitCatalog, "waits.yaml"
        )


def test_each_class_has_a_rule() -> None:
    catalog = wait_catalog.load()

    assert catalog.classes.keys() - {rule.wait for rule in catalog.rules} == {"on_cpu", "other", "runnable"}
    assert label("row_lock") == "row lock"
    assert label("from a newer version") == "from a newer version"


@pytest.mark.parametrize(
    "stack",
    [
        (
            "psi_cond_timedwait",
            "",
            "MDL_context::acquire_lock",
            "open_table",
            "open_tables",
            "dispatch_command",
        ),
        ("psi_cond_timedwait", "", "MDL_context::acquire_lock", "ha_commit_trans", "dispatch_command"),
        ("MDL_wait::timed_wait", "MDL_context::acquire_lock", "open_table", "dispatch_command"),
    ],
)
def test_inlined_wait_for_a_metadata_lock_is_found(stack: tuple[str, ...]) -> None:
    calls = ("libc.so.6!__futex_abstimed_wait_common", "libc.so.6!pthread_cond_timedwait")
    assert default_classifier().classify(frames(*calls, *stack), syscall="futex") == "metadata_lock"


def test_applier_that_waits_for_a_row_is_found_on_a_stripped_server() -> None:
    stack = (
        "libc.so.6!__futex_abstimed_wait_common", "libc.so.6!pthread_cond_timedwait", "", "", "",
        "handler::ha_rnd_pos", "Rows_log_event::find_row", "Rows_log_event::do_apply_event",
        "Log_event::apply_event", "", "handle_slave_sql", "", "libc.so.6!start_thread",
    )  # fmt: skip
    assert default_classifier().classify(frames(*stack), syscall="futex") == "row_lock"


@pytest.mark.parametrize("server", store.servers())
def test_recorded_stacks_get_their_class(server: str) -> None:
    wrong = [
        f"{got} instead of {item.wait}: {','.join(item.frames)[:300]}"
        for item in store.read(server)
        if (got := store.classify(item)) != item.wait
    ]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("link", "kind"),
    [
        ("/var/lib/mysql/ib_logfile0", "redo"),
        ("/var/lib/mysql/#innodb_redo/#ib_redo12", "redo"),
        ("/var/lib/mysql/shop/orders.ibd", "data"),
        ("/var/lib/mysql/ibdata1", "data"),
        ("/var/lib/mysql/mysql/user.MYI", "data"),
        ("/var/lib/mysql/host-bin.000123", "binlog"),
        ("/var/lib/mysql/binlog.000001", "binlog"),
        ("/var/lib/mysql/host-relay-bin.000002", "relaylog"),
        ("/var/lib/mysql/#ib_16384_0.dblwr", "doublewrite"),
        ("/var/lib/mysql/#ib_16384_1.bdblwr", "doublewrite"),
        ("/var/lib/mysql/xb_doublewrite", "doublewrite"),
        ("/var/lib/mysql/undo_001", "undo"),
        ("/var/lib/mysql/undo002", "undo"),
        ("/var/lib/mysql/ibtmp1", "temporary"),
        ("/var/lib/mysql/#innodb_temp/temp_3.ibt", "temporary"),
        ("/tmp/ibXYz09a (deleted)", "temporary"),  # noqa: S108
        ("/var/lib/mysql/shop/#sql-alter-1f.ibd", "temporary"),
        ("/var/lib/mysql/shop/orders.frm", "frm"),
        ("socket:[12345]", "socket"),
        ("pipe:[5]", "pipe"),
        ("anon_inode:[eventpoll]", "eventpoll"),
        ("anon_inode:[io_uring]", "other"),
        ("/var/log/mysql/slow.log", "other"),
    ],
)
def test_kind_of_file_follows_from_its_path(link: str, kind: str) -> None:
    assert descriptors.kind_of(link) == kind


def test_descriptor_may_have_been_closed(tmp_path: Path) -> None:
    folder = tmp_path / "7" / "fd"
    folder.mkdir(parents=True)
    (folder / "3").symlink_to("/data/ib_logfile1")

    assert descriptors.kinds(7, [3, 3, 4], proc=str(tmp_path)) == {3: "redo"}


def test_both_architectures_have_the_system_calls_on_files() -> None:
    for machine in ("x86_64", "aarch64"):
        names = {descriptors.syscall_names(machine)[number] for number in descriptors.file_calls(machine)}
        assert {"fsync", "fdatasync", "pread64", "pwrite64", "read", "write"} <= names
    assert descriptors.syscall_names("vax") == {}


#: Library functions that are also linked into some servers.
LINKED_IN = {"io_submit"}


@pytest.mark.parametrize("server", store.servers())
def test_stored_stacks_begin_at_the_same_function_as_those_with_modules(server: str) -> None:
    """Check that names alone identify the library functions of all golden stacks."""
    differences = []
    for golden in store.read(server):
        frames_ = store.unpack(golden.frames)
        by_module = tuple(frame.label for frame in server_frames(frames_, golden.wait))
        by_name = server_functions(tuple(frame.label for frame in frames_), golden.wait)
        if by_module != by_name and not (by_module and by_module[0] in LINKED_IN):
            differences.append((golden.wait, by_module[:2], by_name[:2]))
    assert differences == []


def test_stacks_are_complete_if_the_class_or_the_server_explains_nothing() -> None:
    assert server_functions(("poll", "vio_read"), "on_cpu") == ("poll", "vio_read")
    assert server_functions(("poll", "libc.so.6+0x12")) == ("poll", "libc.so.6+0x12")
    assert server_functions(("libc.so.6+0x12", "fsync", "mysqld+0x34", "poll")) == ("mysqld+0x34", "poll")
    assert server_functions(()) == ()
    assert server_functions(("pwrite64", "my_pwrite", "_mi_write_keypage")) == (
        "my_pwrite",
        "_mi_write_keypage",
    )
    assert server_functions(("mi_write", "ha_myisam::write_row")) == ("mi_write", "ha_myisam::write_row")
