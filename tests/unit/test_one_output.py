"""All output passes through ``sanitize``: on terminals, in logs, in HTTP responses and in files."""

from __future__ import annotations

import ast
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from innoscope.cli import main
from innoscope.cli.parameters import completes
from innoscope.common import console
from innoscope.daemon.http.server import plain, plain_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.daemon.http.server import Response

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


#: Functions and methods that write files or send text elsewhere, by kind of destination.
WRITES = {
    "file": frozenset({"write_text", "write_bytes", "dump"}),
    "log": frozenset({"StreamHandler", "FileHandler", "SysLogHandler", "WatchedFileHandler", "lastResort"}),
    "completion": frozenset({"CompletionItem"}),
    "response": frozenset({"Response"}),
    "bytes": frozenset({"raw"}),
}
OPENERS = frozenset({"open", "fdopen", "NamedTemporaryFile", "TemporaryFile"})

#: Modules that write unsanitized bytes or text to a destination, with the reason why that is safe.
WRITERS = {
    ("cli/commands/history.py", "bytes"): "history_text.flame_graph sanitizes names",
    ("cli/commands/trace.py", "bytes"): "render.encode sanitizes names",
    ("cli/main.py", "file"): "/dev/null",
    ("cli/parameters.py", "completion"): "sanitizes words and descriptions",
    ("cli/report_options.py", "bytes"): "render.pprof sanitizes names",
    ("common/cache.py", "file"): "bytes that only Innoscope reads, with a checksum",
    ("common/logs.py", "log"): "Structured sanitizes records",
    ("daemon/agent/incidents.py", "file"): "sanitize.dumps",
    ("daemon/agent/incidents.py", "response"): "an incident file, which its writer sanitizes",
    ("daemon/agent/page.py", "response"): "sanitize.block",
    ("daemon/agent/routes.py", "response"): "metrics.families sanitizes labels",
    ("daemon/agent/stack_history.py", "response"): "render.encode sanitizes names",
    ("daemon/fleet/incidents.py", "file"): "an incident file, which is checked when it is read",
    ("daemon/http/answers.py", "response"): "sanitize.dumps",
    ("daemon/http/page_files.py", "response"): "files of Innoscope",
    ("daemon/http/runbooks.py", "response"): "files of Innoscope",
    ("daemon/http/server.py", "response"): "plain_lines sanitizes lines",
    ("diagnose/incident/files.py", "file"): "codec sanitizes strings",
    ("probes/bcc_worker.py", "file"): "a pipe to its parent",
    ("sampling/recording.py", "file"): "sanitize.json_text",
    ("sampling/render/sink.py", "bytes"): "its callers are listed here",
    ("sampling/render/sink.py", "file"): "sanitizes lines",
    ("sampling/sessions/store.py", "file"): "a lock file, and a cursor: JSON in ASCII",
    ("target/symbols/debuginfod.py", "file"): "debug information, which only Innoscope reads",
    ("toggles/backends/memory.py", "file"): "the server's memory",
    ("toggles/expiry_main.py", "file"): "a pid and /dev/null",
    ("toggles/facts.py", "file"): "the server's memory",
    ("toggles/journal.py", "file"): "journal_format encodes JSON in ASCII",
    ("toggles/lock.py", "file"): "an empty file",
    ("toggles/status_file.py", "file"): "sanitize.dumps",
}


def writes(tree: ast.AST) -> set[str]:
    """Return the kinds of destinations that a module writes to directly."""
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        found |= {kind for kind, names in WRITES.items() if name in names}
        if (name in OPENERS and _opens_for_writing(node)) or ast.unparse(node.func) == "os.write":
            found.add("file")
    return found


def _opens_for_writing(call: ast.Call) -> bool:
    """Return whether a call opens a file for writing, with a mode or with flags of ``os.open``."""
    for argument in (*call.args, *(one.value for one in call.keywords if one.arg in ("mode", "flags"))):
        if isinstance(argument, ast.Constant) and re.fullmatch(
            "[rwaxbt+]*[wax+][rwaxbt+]*", str(argument.value)
        ):
            return True
        if re.search(r"\bO_(WRONLY|RDWR)\b", ast.unparse(argument)):
            return True
    return False


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


def test_modules_that_write_text_elsewhere_are_known() -> None:
    """Fail if another module writes text: it must sanitize untrusted text, or call a function that does."""
    found = {
        (module, kind) for module in modules() for kind in writes(ast.parse((PACKAGE / module).read_text()))
    }

    assert found == WRITERS.keys()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("path.write_text(name)", "file"), ("path.write_bytes(b'')", "file"), ("open(path, 'w')", "file"),
        ("path.open('ab')", "file"), ("open(path, mode='r+')", "file"), ("os.write(1, b'')", "file"),
        ("os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT), 'wb')", "file"), ("json.dump(value, f)", "file"),
        ("tempfile.NamedTemporaryFile('wb')", "file"), ("logging.StreamHandler()", "log"),
        ("handlers.SysLogHandler()", "log"), ("CompletionItem(word)", "completion"),
        ("Response(b'')", "response"), ("server.Response(b'')", "response"), ("console.raw(b'')", "bytes"),
    ],
)  # fmt: skip
def test_the_check_finds_each_kind_of_write(text: str, kind: str) -> None:
    assert writes(ast.parse(text)) == {kind}


def test_reading_files_is_not_writing() -> None:
    assert not writes(ast.parse("open(path); path.open('rb'); open(path, encoding='ascii')"))


@pytest.mark.parametrize("made", [plain, lambda text: plain_lines(["head", text])])
def test_plain_responses_are_sanitized(made: Callable[[str], Response]) -> None:
    response = made("a\x1b[2J\u202e\x9b\udcff\nb")

    assert response.body.decode().splitlines()[-1] == r"a\x1b[2J\u202e\x9b\udcff\nb"


def test_completions_are_sanitized() -> None:
    context = click.Context(main.cli)
    complete = completes(lambda: {"12\x1b[2J": "MySQL 5.6\x1b]0;x\x07\nplain,evil"})

    (item,) = complete(context, click.Argument(["name"]), "12")

    assert (item.value, item.help) == (r"12\x1b[2J", r"MySQL 5.6\x1b]0;x\x07\nplain,evil")


def test_only_sanitize_encodes_json_without_ascii_escapes() -> None:
    """Check that only these two modules set ``ensure_ascii=False``.

    With this setting, DEL, C1 and bidirectional controls are not escaped.
    """
    raw = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "ensure_ascii" and ast.unparse(node.value) != "True"
    }

    assert raw == {"common/sanitize.py", "sampling/recording.py"}  # recording.py passes lines to json_text


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
