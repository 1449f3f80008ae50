"""All output is written by ``console``; all JSON of untrusted text is encoded by ``sanitize``."""

from __future__ import annotations

import ast
import io
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from innoscope.cli import main
from innoscope.common import console

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parents[2] / "agent" / "innoscope"

#: Functions that write to the terminal, whichever module they come from.
CALLS = frozenset({
    "print", "echo", "secho", "echo_via_pager", "style", "confirm", "prompt", "progressbar", "pager",
    "print_exc", "print_exception", "print_stack", "print_tb", "showwarning", "excepthook",
})  # fmt: skip
STREAMS = frozenset({"stdout", "stderr", "__stdout__", "__stderr__"})
#: Attributes of a stream that any module may read, because reading them writes nothing.
HARMLESS = frozenset({"isatty", "fileno", "encoding"})

#: Modules that may write, with the reason.
ALLOWED = {
    "common/console.py": "writes all output",
    "probes/bcc_worker.py": "a child process whose standard error is JSON for its parent",
    "cli/main.py": "redirects the streams to /dev/null after a broken pipe",
}


def outputs(tree: ast.AST) -> Iterator[str]:
    """Yield the calls, attributes and imports by which a module could write to a stream."""
    harmless = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in HARMLESS
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            if name in CALLS:
                yield f"{name}() in line {node.lineno}"
        elif isinstance(node, ast.Attribute) and node.attr in STREAMS and id(node) not in harmless:
            if isinstance(node.value, ast.Name) and node.value.id == "sys":
                yield f"sys.{node.attr} in line {node.lineno}"
        elif isinstance(node, ast.ImportFrom) and node.module in ("sys", "click"):
            taken = {alias.name for alias in node.names} & (STREAMS | CALLS)
            if taken:
                yield f"{', '.join(taken)} imported in line {node.lineno}"


def modules() -> list[str]:
    return sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("module", modules())
def test_only_console_writes_output(module: str) -> None:
    found = list(outputs(ast.parse((PACKAGE / module).read_text())))

    assert bool(found) == (module in ALLOWED), found


@pytest.mark.parametrize(
    "text",
    [
        "print(1)", "click.echo(1)", "from click import echo", "sys.stdout.write('')", "x = sys.stderr",
        "console.print('')", "from sys import stdout", "traceback.print_exc()", "click.secho('')",
    ],
)  # fmt: skip
def test_the_check_finds_each_kind_of_output(text: str) -> None:
    assert list(outputs(ast.parse(text)))


def test_only_sanitize_encodes_json_without_ascii_escapes() -> None:
    """Check all other modules, because ``ensure_ascii=False`` keeps DEL, C1 and bidirectional controls."""
    raw = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "ensure_ascii" and ast.unparse(node.value) != "True"
    }

    assert raw == {"common/sanitize.py", "sampling/recording.py"}  # recording passes lines to json_text


def test_control_characters_cannot_split_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    console.lines(("a\nb", "c\x1b[2J\r\x85"))

    assert capsys.readouterr().out == "a\\nb\nc\\x1b[2J\\r\\x85\n"


def test_a_block_keeps_its_line_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    console.block("a\n  b\x1b\n", err=True)

    assert capsys.readouterr().err == "a\n  b\\x1b\n"


def test_progress_is_shown_on_terminals_only(capsys: pytest.CaptureFixture[str]) -> None:
    console.progress("x")
    console.clear_progress()

    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "begins"),
    [
        ({}, "\x1b[31ma\\x1b[2J\x1b[0m\n"),
        ({"NO_COLOR": ""}, "\x1b[31ma"),
        ({"NO_COLOR": "1"}, "a\\x1b[2J\n"),
        ({"TERM": "dumb"}, "a\\x1b[2J\n"),
    ],
)
def test_only_terminals_that_support_colors_get_them(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], begins: str
) -> None:
    """Check that control characters in the text are escaped, whether or not the text is colored."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    console.line(console.Colored("a\x1b[2J", console.Color.RED))

    assert terminal.getvalue().startswith(begins)


def test_no_colors_in_files(capsys: pytest.CaptureFixture[str]) -> None:
    console.line(console.Colored("a", console.Color.RED))

    assert capsys.readouterr().out == "a\n"


def test_usage_errors_are_sanitized(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main.main(["stacks", "--wait", "a\x1b]0;x\x07\u202e\udcff", "--pid", "x\x1b[2J"])
        == click.UsageError.exit_code
    )

    printed = capsys.readouterr().err
    assert all(line.isprintable() for line in printed.split("\n")), printed
