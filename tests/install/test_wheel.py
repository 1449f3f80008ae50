"""The wheel is complete: it contains the core, the catalog, the live page and every package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory that contains only the installed wheel."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-deps", "--target", target, wheel], check=True)
    return target


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": str(installed)},
        cwd=installed,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.timeout(300)
def test_wheel_uses_the_stable_abi(installed: Path) -> None:
    assert (installed / "innoscope" / "_native.abi3.so").is_file()


def test_wheel_contains_core_and_catalog(installed: Path) -> None:
    program = (
        "import innoscope, innoscope._native as core; from innoscope.common import data;"
        "from innoscope.sampling import wait_catalog;"
        "source = data.folder('uprobes') / 'flush.bpf.c', data.folder('include') / 'probe.h',"
        " data.folder('runbooks') / 'InnoscopeServerDown.md';"
        "assert all(file.is_file() for file in source), source;"
        "print(innoscope.__file__, core.__file__, *source, data.catalog_path('waits.yaml'),"
        "len(wait_catalog.load().rules) > 50)"
    )
    done = run(installed, "-c", program)
    assert done.returncode == 0, done.stderr
    *paths, loaded = done.stdout.split()
    assert all(path.startswith(str(installed)) for path in paths), done.stdout
    assert loaded == "True"


def test_wheel_contains_the_live_page(installed: Path) -> None:
    program = (
        "from innoscope.daemon.http import page_files as files; print(files.template()[:15], *files.routes())"
    )
    done = run(installed, "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<!doctype html>")
    assert "/main.js" in done.stdout
    assert "/vendor/uPlot.iife.min.js" in done.stdout


def test_wheel_contains_every_package(installed: Path) -> None:
    there = {path.parent.name for path in (ROOT / "agent" / "innoscope").rglob("__init__.py")}
    packed = {path.parent.name for path in (installed / "innoscope").rglob("__init__.py")}
    assert there <= packed
