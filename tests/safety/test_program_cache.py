"""Test that compiled probes are cached, and that a file that another user may have written is not used."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.common.cache import Cache
from innoscope.common.errors import KernelUnable
from innoscope.probes.loader import compile_and_load
from innoscope.probes.object_file import Compiled, MapShape

if TYPE_CHECKING:
    from collections.abc import Callable

_TEXT = """
#include <uapi/linux/ptrace.h>
BPF_ARRAY(seen, u64, 1);
BPF_HASH(inner, u32, u64, 16);
int probe(struct pt_regs *ctx)
{
    u32 key = 0;
    u64 *count = seen.lookup(&key), one = 1;
    inner.update(&key, &one);
    if (count)
        __sync_fetch_and_add(count, 1);
    return 0;
}
"""
_FDS = Path("/proc/self/fd")
#: A program that the verifier rejects, because it does not check the result of its map lookup.
_REFUSED = """
#include <uapi/linux/ptrace.h>
BPF_ARRAY(seen, u64, 1);
int probe(struct pt_regs *ctx)
{
    u32 key = PT_REGS_PARM1(ctx);
    u64 *count = seen.lookup(&key);
    return *count;
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of cached programs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "innoscope" / "programs"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets an entry for each run of the compiler."""
    runs: list[str] = []
    run = subprocess.run

    def recorded(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        runs.append(command[-1])
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", recorded)
    return runs


def _load() -> None:
    """Load the program with all its maps, including those that are not requested by name."""
    loaded = compile_and_load(_TEXT, ["probe"], ["seen"])
    assert loaded.programs.keys() == {"probe"}
    assert len(loaded.maps) == 2
    descriptors = [_FDS / str(one) for one in (*loaded.programs.values(), *loaded.maps.values())]
    assert all("bpf" in str(one.readlink()) for one in descriptors)
    info = Path(f"/proc/self/fdinfo/{loaded.maps['seen']}").read_text()
    assert "map_type:\t2\nkey_size:\t4\nvalue_size:\t8\nmax_entries:\t1\n" in info
    loaded.close()
    assert not any(one.is_symlink() for one in descriptors)


def test_a_program_is_compiled_once(folder: Path, compiled: list[str]) -> None:
    _load()
    _load()

    assert len(compiled) == 1
    [file] = folder.iterdir()
    assert (file.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)


def _open_to_others(file: Path) -> None:
    file.chmod(0o666)


def _of_another(file: Path) -> None:
    os.chown(file, 65534, 65534)


def _in_a_folder_of_another(file: Path) -> None:
    os.chown(file.parent, 65534, 65534)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _refused_by_the_kernel(file: Path) -> None:
    """Cache a program without an exit instruction, which the verifier rejects."""
    code = Compiled({"probe": bytes(16)}, (MapShape("seen", 2, 4, 8, 1, 0),))
    Cache("programs", 64).write(file.name, code.pack())


@pytest.mark.parametrize(
    "spoil", [_open_to_others, _of_another, _in_a_folder_of_another, _cut, _refused_by_the_kernel]
)
def test_an_untrusted_or_damaged_cache_file_is_compiled_again(
    folder: Path, compiled: list[str], spoil: Callable[[Path], None]
) -> None:
    _load()
    [file] = folder.iterdir()
    spoil(file)

    _load()

    assert len(compiled) == 2


def test_without_a_cache_folder_it_is_compiled_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    _load()
    _load()
    assert len(compiled) == 2


def test_a_compile_error_is_reported_with_the_compilers_message(folder: Path) -> None:
    with pytest.raises(KernelUnable, match="use of undeclared identifier 'nothing'"):
        compile_and_load("int probe(void *ctx) { return nothing; }", ["probe"], [])


def test_a_refused_program_is_reported_with_the_verifiers_message(folder: Path) -> None:
    with pytest.raises(KernelUnable, match=r"loading the program probe(.|\n)*invalid mem access"):
        compile_and_load(_REFUSED, ["probe"], ["seen"])
