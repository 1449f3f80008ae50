"""The rules for examples in the documentation (docs/contributing.md, Examples in the documentation)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from live.examples import Scene, There, difference, examples, placed

if TYPE_CHECKING:
    from pathlib import Path

THERE = There(42, "/tmp/s.sock", 3307, "/opt/mysqld", "/tmp/packs", 43, 44)  # noqa: S108
PAGE = """\
# A page
<!-- example: mysql-5.5.9 row_lock=30 exit=14 -->
```console
$ innoscope stacks   # a remark
94 threads

$ innoscope top
```
    ```console
    $ innoscope not this one
    ```
```sh
$ innoscope nor this
```
```console
$ innoscope targets
```
"""


def test_console_blocks_are_found_with_their_scene(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    first, second, third = examples(page)

    assert (first.place, first.command) == ("page.md:4", "innoscope stacks   # a remark")
    assert first.scene == second.scene == Scene("mysql-5.5.9", (("row_lock", 30),))
    assert (first.code, first.shown) == (14, ("94 threads", ""))
    assert (third.scene, third.code, third.shown) == (Scene(), 0, ())


@pytest.mark.parametrize(
    "block",
    [
        "```console\nwithout a prompt\n```\n",
        "```console\n```\n",
        "<!-- example: oracle -->\n```console\n$ innoscope targets\n```\n",
    ],
)
def test_malformed_example_is_refused(block: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(block)
    with pytest.raises(ValueError, match=r"page\.md:"):
        list(examples(page))


@pytest.mark.parametrize(
    ("command", "real"),
    [
        ("sudo innoscope stacks", "innoscope stacks --pid 42"),
        ("innoscope stacks -p 4242 --by wait", "innoscope stacks -p 42 --by wait"),
        ("innoscope stacks --socket /run/my.sock", "innoscope stacks --socket /tmp/s.sock"),
        ("innoscope toggle set read_ahead off", "innoscope toggle set read_ahead off --pid 42"),
        ("innoscope targets", "innoscope targets"),
        ("innoscope top --duration 60", "innoscope top --duration 2 --pid 42"),
        ("innoscope self-profile -s 1", "innoscope self-profile -s 1 --pid 43"),
        ("innoscope self-profile --sensor --idle", "innoscope self-profile --idle --pid 44 --seconds 2"),
        ("innoscope stacks --json | jq .waits", "innoscope stacks --json --pid 42 | jq .waits"),
        (
            "innoscope stacks -o /etc/innoscope/symbols.d/x /usr/sbin/mysqld",
            "innoscope stacks -o /tmp/packs/x /opt/mysqld --pid 42",
        ),
    ],
)
def test_options_and_paths_are_replaced(command: str, real: str) -> None:
    assert placed(command, THERE) == real


@pytest.mark.parametrize("command", ["rm -r x", "innoscope nothing", "sudo install x y"])
def test_other_commands_are_not_run(command: str) -> None:
    with pytest.raises(ValueError, match="command"):
        placed(command, THERE)


@pytest.mark.parametrize(
    ("shown", "real", "missing"),
    [
        (
            ("1,029 threads in 11.1 ms: 904 idle, … · not stopped",),
            "3 threads in 1.2 s: 1 idle · not stopped\nmore",
            None,
        ),
        (("pid 28817 at /run/mysqld/mysqld.sock",), "pid 1 at /tmp/a-b/s.sock", None),
        (("head 1", "not compared", "", "  table  of", "row"), "head 2\nother\n\ntable   of\n", None),
        ((), "anything", None),
        (("1 thread",), "one thread", "1 thread"),
        (("head",), "before\nhead", "head"),
        (("head", "", "second"), "head\nthird", "second"),
        (("head", "", "second", "", "third"), "head\nthird\nsecond", "third"),
        (("head",), "", "head"),
        (("904 idle, … done",), "904 idle, 3 others", "904 idle, … done"),
    ],
)
def test_output_must_have_the_first_line_of_each_paragraph(
    shown: tuple[str, ...], real: str, missing: str | None
) -> None:
    assert difference(shown, real) == missing
