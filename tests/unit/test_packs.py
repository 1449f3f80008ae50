"""Every number in a symbol pack is validated, and a small program's pack can be exported and listed."""

from __future__ import annotations

import json
import random
import subprocess
import zlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from innoscope import _native
from innoscope._native import Member
from innoscope.cli import symbol_pack
from innoscope.common.errors import BadFile
from innoscope.target.symbols import installed_packs, packs
from safety.command import assert_one_clear_error, innoscope

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MEMBERS = {"log_sys.lsn": [[64, 8], 8, "unsigned", 0, 1]}
VARIABLES = {"srv_flag": [4096, 8, "unsigned", "volatile unsigned long"]}
GOOD = {"members": MEMBERS, "missing": {"log_sys.age": "no member"}, "variables": VARIABLES}
SOURCE = """
unsigned long max_connections = 151;
struct buf_pool_t { long pages; double pct; struct { unsigned count; } free; } buf_pool;
struct THD { long id; struct THD *next; unsigned command; } first_thread;
static int hidden(volatile int *p) { return *p; }
int main(int argc, char **argv) {
    return hidden(&argc) + (int) (max_connections + buf_pool.pages + first_thread.id);
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "mysqld.c").write_text(SOURCE)
    command = ["gcc", "-g", "-O1", "-fno-inline", "-Wl,--build-id=sha1", "-o", "mysqld", "mysqld.c"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "mysqld"


@pytest.fixture
def sealed(program: Path, tmp_path: Path) -> Callable[[bytes, bytes], Path]:
    """Return ``sealed(about, layout)``, which writes a pack with these parts and a valid checksum."""
    build_id = _native.elf_info(str(program)).build_id
    assert build_id

    def seal(about: bytes, layout: bytes) -> Path:
        payload = _native.pack_payload(str(program), about, layout)
        path = tmp_path / f"{build_id}.pack"
        path.write_bytes(_native.pack_seal(build_id, zlib.compress(payload), len(payload)))
        path.chmod(0o644)
        return path

    return seal


def _read(path: Path) -> packs.PackLayout:
    return packs.read_layout(packs.open_pack(str(path)))


def test_a_pack_is_read_as_it_was_written(sealed: Callable[[bytes, bytes], Path]) -> None:
    layout = _read(sealed(b"{}", json.dumps(GOOD).encode()))

    assert layout.members == {"log_sys.lsn": Member((64, 8), 8, "unsigned")}
    assert layout.missing == GOOD["missing"]
    assert layout.variables == {"srv_flag": (4096, 8, "unsigned", "volatile unsigned long")}


@pytest.mark.parametrize(
    "changes",
    [
        {"members": []}, {"members": {"a": [[], 8, "float", 0, 1]}}, {"members": {"a": [[8], 8, "?", 0, 1]}},
        {"members": {"a": [[-8], 8, "unsigned", 0, 1]}}, {"members": {"a": [[8.5], 8, "unsigned", 0, 1]}},
        {"members": {"a": [[1 << 40], 8, "float", 0, 1]}}, {"members": {"a": [[True], 8, "unsigned", 0, 1]}},
        {"members": {"a\x1b[2J": [[8], 8, "unsigned", 0, 1]}}, {"members": {"a": [8]}}, {"missing": {"a": 7}},
        {"missing": {"a": "\x1b]0;x\x07"}}, {"missing": {"a": "x" * 5000}}, {"variables": None},
        {"variables": {"a": [1 << 70, 8, "unsigned", "t"]}}, {"variables": {"a": [1, 8, "pointer", "t"]}},
        {"variables": {"a": [1, 8, ["unsigned"], "t"]}}, {"variables": {"a": "abcd"}},
    ],
)  # fmt: skip
def test_invalid_numbers_and_names_are_refused(
    changes: dict[str, Any], sealed: Callable[[bytes, bytes], Path]
) -> None:
    with pytest.raises(BadFile, match="descriptions are damaged"):
        _read(sealed(b"{}", json.dumps(GOOD | changes).encode()))


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null", b"{}"])
def test_malformed_descriptions_are_refused(text: bytes, sealed: Callable[[bytes, bytes], Path]) -> None:
    with pytest.raises(BadFile, match="descriptions are damaged"):
        _read(sealed(b"{}", text))
    with pytest.raises(BadFile, match="descriptions are damaged"):
        installed_packs.about(packs.open_pack(str(sealed(text or b"", b"{}"))))


def test_oversized_descriptions_are_refused_before_parsing(sealed: Callable[[bytes, bytes], Path]) -> None:
    with pytest.raises(BadFile, match="descriptions are too long"):
        packs.open_pack(str(sealed(b"{}", b" " * (1 << 20) + b"{}")))


def test_damaged_descriptions_never_crash(sealed: Callable[[bytes, bytes], Path]) -> None:
    original, draw = json.dumps(GOOD).encode(), random.Random(3)  # noqa: S311
    path, refused = sealed(b"{}", original), 0
    pack = packs.open_pack(str(path))
    for _ in range(3000):
        data = bytearray(original)
        for _ in range(draw.choice((1, 2, 8))):
            data[draw.randrange(len(data))] = draw.choice(b'0123456789[]{},"-.eE nulltrue\\\x00\xff')

        damaged = cast("_native.Pack", SimpleNamespace(path=pack.path, layout=bytes(data)))
        try:
            packs.read_layout(damaged)
        except BadFile:
            refused += 1
    assert refused > 1000


def test_the_commands_export_show_and_check_a_pack(program: Path, tmp_path: Path) -> None:
    made = innoscope("symbols", "export", "--file", program, "-o", tmp_path, "--server", "shop 1.0")
    assert (made.returncode, made.stderr) == (0, "")
    build_id = _native.elf_info(str(program)).build_id or ""
    path = tmp_path / f"{build_id}.pack"
    assert made.stdout.startswith(f"{path}: shop 1.0, ")
    assert path.stat().st_mode & 0o777 == 0o644

    about = json.loads(innoscope("symbols", "show", path, "--json").stdout)
    assert (about["build_id"], about["server"], about["made_of"]) == (build_id, "shop 1.0", "mysqld")
    shown = innoscope("symbols", "show", path).stdout
    assert build_id in shown
    assert "shop 1.0" in shown
    layout = _read(path)
    assert layout.members["buf_pool.free.count"] == Member((16,), 4, "unsigned")
    assert "buf_pool.curr_size" in layout.missing
    assert layout.members["THD.command"].offsets == (16,), "a path of statements.yaml"
    assert layout.members["THD.next"].offsets == (8,), "a path of owners.yaml"
    assert layout.variables["max_connections"][1:3] == (8, "unsigned")
    assert innoscope("symbols", "check", path).stdout.startswith(f"{path}: valid: shop 1.0")


def test_unsuitable_files_are_not_exported(program: Path, tmp_path: Path) -> None:
    stripped, junk = tmp_path / "stripped", tmp_path / "junk"
    subprocess.run(["strip", "-o", stripped, program], check=True)
    junk.write_bytes(b"junk" * 1000)
    nameless = tmp_path / "nameless"
    subprocess.run(["objcopy", "--remove-section=.note.gnu.build-id", program, nameless], check=True)
    for file, words in (
        (stripped, "has no symbols"),
        (junk, "not an ELF file"),
        (nameless, "has no build-id"),
    ):
        result = innoscope("symbols", "export", "--file", file, "-o", tmp_path)
        assert_one_clear_error(result, BadFile.exit_code, words)
    assert not list(tmp_path.glob("*.pack"))


def test_an_unwritable_output_is_one_clear_error(program: Path, tmp_path: Path) -> None:
    result = innoscope("symbols", "export", "--file", program, "-o", tmp_path / "no" / "x.pack")

    assert_one_clear_error(result, 12, "cannot write")


def test_installed_packs_are_listed_with_their_problems(
    sealed: Callable[[bytes, bytes], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INNOSCOPE_SYMBOLS", str(tmp_path / "none"))
    assert installed_packs.entries([]) == []
    assert "no symbol packs in" in innoscope("symbols", "list").stdout

    monkeypatch.setenv("INNOSCOPE_SYMBOLS", str(tmp_path))
    good = sealed(b"{}", json.dumps(GOOD).encode())
    (tmp_path / "shop.pack").write_bytes(good.read_bytes())
    (tmp_path / "junk.pack").write_bytes(b"junk")
    (tmp_path / "README").write_text("ignored")
    entries = {entry.path.rsplit("/", 1)[1]: entry for entry in installed_packs.entries([])}

    assert entries.keys() == {good.name, "shop.pack", "junk.pack"}
    assert (entries[good.name].problem, entries[good.name].fits) == (None, ())
    assert "mv " in (entries["shop.pack"].problem or "")
    assert "not a symbol pack" in (entries["junk.pack"].problem or "")
    listed = innoscope("symbols", "list").stdout
    assert good.stem in listed
    assert "none running" in listed


def test_all_variables_that_toggles_write_are_exported() -> None:
    names = [setting.name for setting in symbol_pack.memory_settings()]

    assert "srv_startup_is_before_trx_rollback_phase" in names
    assert names == sorted(set(names))
