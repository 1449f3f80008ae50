"""The rules of waits.yaml, and the machinery that applies them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from golden import store
from innoscope.common.errors import BadFile
from innoscope.common.schema import convert
from innoscope.sampling import descriptors, wait_catalog
from innoscope.sampling.classify import Classifier, default_classifier, label
from unit.dumps import frames

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = {
    "row_lock": {"label": "row lock", "about": "a", "state": "sleeping"},
    "spin": {"label": "spin", "about": "b", "state": "running"},
    "io": {"label": "input and output", "about": "c"},
    "on_cpu": {"label": "on CPU", "about": "d"},
    "other": {"label": "other", "about": "e"},
}


def rules(*given: dict[str, Any], libraries: tuple[str, ...] = ("libc.so*",)) -> Classifier:
    data = {"version": 1, "classes": CLASSES, "libraries": list(libraries), "rules": list(given)}
    return Classifier(convert(data, wait_catalog.Catalog, "waits.yaml"))


def test_the_first_rule_that_matches_wins() -> None:
    classifier = rules({"class": "row_lock", "frames": ["a"]}, {"class": "io", "frames": ["b"]})

    assert classifier.classify(frames("b", "a")) == "row_lock"


def test_a_frame_pattern_is_a_whole_name() -> None:
    classifier = rules({"class": "io", "frames": ["lock_*wait", "/x[0-9]+/"]})

    assert classifier.classify(frames("lock_wait")) == "io"
    assert classifier.classify(frames("lock_rec_wait")) == "io"
    assert classifier.classify(frames("x12")) == "io"
    assert classifier.classify(frames("my_lock_wait", "xy")) == "other"


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
def test_a_list_matches_what_one_of_its_patterns_does(
    patterns: list[str], names: list[str], others: list[str]
) -> None:
    classifier = rules({"class": "io", "frames": patterns, "file": ["redo"]})
    found = [name for name in names + others if classifier.classify(frames(name), file="redo") == "io"]
    assert found == names


@pytest.mark.parametrize(
    "suffix",
    [".isra.3", ".part.0.constprop.12", ".lto_priv.0", ".clone.3", " [clone .cold]", "@@GLIBC_2.3.2"],
)
def test_compiler_suffixes_do_not_matter(suffix: str) -> None:
    assert rules({"class": "io", "frames": ["fil_io"]}).classify(frames("fil_io" + suffix)) == "io"


def test_leaf_is_the_servers_innermost_function_or_a_library_call_from_it() -> None:
    classifier = rules({"class": "io", "leaf": ["fsync", "inner"]})

    assert classifier.classify(frames("libc.so.6!fsync", "my_sync")) == "io"
    assert classifier.classify(frames("libc.so.6!poll", "inner", "outer")) == "io"
    assert classifier.classify(frames("other_thing", "inner")) == "other"
    assert classifier.classify(frames("", "inner")) == "other"


def test_frames_and_also_must_both_match_and_not_must_not() -> None:
    classifier = rules({"class": "io", "frames": ["a"], "also": ["b"], "not": ["c"]})

    assert classifier.classify(frames("a", "b")) == "io"
    assert classifier.classify(frames("a")) == "other"
    assert classifier.classify(frames("a", "b", "c")) == "other"


def test_system_call_and_kind_of_file() -> None:
    classifier = rules({"class": "io", "syscall": ["fsync"], "file": ["redo"]})

    assert classifier.classify((), syscall="fsync", file="redo") == "io"
    assert classifier.classify((), syscall="fsync", file="data") == "other"
    assert classifier.classify((), syscall="pwrite64", file="redo") == "other"
    assert classifier.classify(()) == "other"


def test_thread_names() -> None:
    classifier = rules({"class": "io", "comm": ["ib_log_*"]})

    assert classifier.classify((), comm="ib_log_flush") == "io"
    assert classifier.classify((), comm="mysqld") == "other"


def test_the_state_of_a_class_limits_its_rules() -> None:
    classifier = rules({"class": "row_lock", "frames": ["a"]}, {"class": "spin", "frames": ["a"]})

    assert classifier.classify(frames("a")) == "row_lock"
    assert classifier.classify(frames("a"), running=True) == "spin"


def test_a_stale_stack_proves_no_wait() -> None:
    classifier = rules({"class": "io", "frames": ["a"]})

    assert classifier.classify(frames("a"), running=True) == "io"
    assert classifier.classify(frames("a"), running=True, stale=True) == "on_cpu"


def test_nothing_matches() -> None:
    classifier = rules({"class": "io", "frames": ["a"]})

    assert classifier.classify(frames("b")) == "other"
    assert classifier.classify((), running=True) == "on_cpu"


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"class": "nothing", "frames": ["a"]}, "rules[0]: unknown class 'nothing'"),
        ({"class": "io", "frame": ["a"]}, "rules[0]: Object contains unknown field `frame`"),
        ({"class": "io", "frames": ["/(/"]}, "rules[0]: malformed pattern '/(/'"),
        ({"class": "io", "frames": ["/(?P<a>b)/", "/(?P<a>c)/"]}, "rules[0]: malformed patterns: "),
        ({"class": "io", "comm": ["a", "/[/"]}, "rules[0]: malformed pattern '/[/'"),
        ({"class": "io", "frames": "a"}, "rules[0].frames: Expected `array`, got `str`"),
        ({"class": "io", "frames": [1]}, "rules[0].frames[0]: Expected `str`, got `int`"),
        ({"class": "io", "syscall": ["fsink"]}, "rules[0]: unknown system call 'fsink'"),
        ({"class": "io", "file": ["tape"]}, "rules[0]: unknown kind of file 'tape'"),
        ({"class": "io", "state": "dead", "frames": ["a"]}, "rules[0].state: Invalid enum value 'dead'"),
        ({"class": "io", "not": ["a"]}, "rules[0]: has no condition"),
        ({"frames": ["a"]}, "rules[0]: Object missing required field `class`"),
        ("io", "rules[0]: Expected `object`, got `str`"),
    ],
)
def test_an_invalid_rule_is_named(rule: Any, problem: str) -> None:
    data = {"version": 1, "classes": CLASSES, "rules": [rule]}

    with pytest.raises(BadFile) as caught:
        convert(data, wait_catalog.Catalog, "waits.yaml")
    assert caught.value.what.startswith(f"waits.yaml: {problem}")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"more": 1}, "unknown field `more`"),
        ({"version": 2}, "version: Invalid enum value 2"),
        ({"classes": {}}, "class on_cpu is missing"),
        ({"classes": CLASSES | {"Bad-Name": {"label": "a", "about": "b"}}}, "classes.Bad-Name: "),
        ({"classes": CLASSES | {"x": {"label": "x", "about": "y", "colour": "z"}}}, "classes.x: .*`colour`"),
        ({"classes": CLASSES | {"x": {"label": "x"}}}, "classes.x: .*missing required field `about`"),
        ({"classes": CLASSES | {"x": {"label": "", "about": "y"}}}, "classes.x.label: .*length >= 1"),
        ({"classes": CLASSES | {"x": {"label": "a", "about": "b", "state": "c"}}}, "classes.x.state: "),
        ({"rules": {}}, "rules: Expected `array`"),
    ],
)
def test_an_invalid_catalog_is_named(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadFile, match=problem):
        convert({"version": 1, "classes": CLASSES, "rules": []} | change, wait_catalog.Catalog, "waits.yaml")


def test_a_damaged_file_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "waits.yaml"
    path.write_text("rules: [")
    with pytest.raises(BadFile, match="as YAML"):
        wait_catalog.load(path)
    path.write_text(
        yaml.safe_dump({"version": 1, "classes": CLASSES, "rules": [{"class": "io", "frame": ["a"]}]})
    )
    with pytest.raises(BadFile, match=r"line \d+: rules\[0\]: .*`frame`"):
        wait_catalog.load(path)
    with pytest.raises(BadFile, match="cannot read"):
        wait_catalog.load(tmp_path / "missing")


def test_the_catalog_is_sound_and_each_class_has_a_rule() -> None:
    given = wait_catalog.load()
    given_out = {rule.wait for rule in given.rules}

    assert given.classes.keys() - given_out == {"on_cpu", "other", "runnable"}
    assert label("row_lock") == "row lock"
    assert label("from a newer version") == "from a newer version"


def test_every_class_of_the_design_is_there() -> None:
    wanted = (
        "idle on_cpu row_lock metadata_lock opening_tables spin mutex_wait page_read page_write "
        "doublewrite fsync_data fsync_redo fsync_binlog redo_space redo_write_wait free_page_wait "
        "flush_wait change_buffer_merge read_ahead deadlock_search group_commit purge statistics "
        "replication network_send recovery shutdown allocator background_idle user_sleep other"
    )

    assert set(wanted.split()) <= wait_catalog.load().classes.keys()


@pytest.mark.parametrize("server", store.servers())
def test_real_stacks_get_their_class(server: str) -> None:
    wrong = []
    for item in store.read(server):
        got = default_classifier().classify(
            store.unpack(item.frames),
            comm=item.comm,
            syscall=item.syscall,
            file=item.file,
            running=item.running,
            stale=item.stale,
        )
        if got != item.wait:
            wrong.append(f"{got} instead of {item.wait}: {','.join(item.frames)[:300]}")

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
def test_kinds_of_files(link: str, kind: str) -> None:
    assert descriptors.kind_of(link) == kind


def test_descriptors_are_resolved_once_and_may_be_gone(tmp_path: Path) -> None:
    folder = tmp_path / "7" / "fd"
    folder.mkdir(parents=True)
    (folder / "3").symlink_to("/data/ib_logfile1")

    assert descriptors.kinds(7, [3, 3, 4], proc=str(tmp_path)) == {3: "redo"}


def test_both_architectures_know_the_calls_that_tell_of_files() -> None:
    for machine in ("x86_64", "aarch64"):
        names = {descriptors.syscall_names(machine)[number] for number in descriptors.file_calls(machine)}
        assert {"fsync", "fdatasync", "pread64", "pwrite64", "read", "write"} <= names
    assert descriptors.syscall_names("vax") == {}
