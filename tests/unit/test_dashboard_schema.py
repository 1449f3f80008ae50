"""The dashboards' JSON against what Grafana publishes: the types of @grafana/schema, by TypeScript."""

from __future__ import annotations

import json
import re
import subprocess
from bisect import bisect_left
from pathlib import Path
from typing import Any

import pytest

import grafana
from servers import cache, ensure_commands
from servers.run import run

TYPES = Path(__file__).parents[1] / "schema" / "dashboard.ts"
#: Packages of npm, and the SHA-256 of each one's tarball.
PACKAGES = {
    "@grafana/schema@13.2.3": "f492f0ec5b0212cbf7f098d5d54b4a540371c262c6b78e9016ee2d26add9e559",
    "typescript@5.9.3": "10e108c9cf7d5f2879053dff18515fb405abf2ccef63eaaf017d9c571687a1d3",
}
OPTIONS = (
    "--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--module", "esnext",
    "--moduleResolution", "bundler",
)  # fmt: skip


@pytest.fixture(scope="module")
def compiler() -> Path:
    """A folder with both packages in node_modules."""
    home = cache.root() / "tools" / ("grafana-schema-" + "-".join(sha[:8] for sha in PACKAGES.values()))
    with cache.locked(home.name):
        if not home.exists():
            ensure_commands("npm")
            with cache.made_whole(home) as scratch:
                for package, sha256 in PACKAGES.items():
                    _unpack(package, sha256, scratch)
    return home


def _unpack(package: str, sha256: str, scratch: Path) -> None:
    run(["npm", "pack", "--silent", "--ignore-scripts", package], scratch)
    [tarball] = scratch.glob("*.tgz")
    assert cache.sha256(tarball) == sha256, f"{package}: refused"
    folder = scratch / "node_modules" / package.rpartition("@")[0]
    folder.mkdir(parents=True)
    run(["tar", "-xzf", str(tarball), "-C", str(folder), "--no-same-owner", "--strip-components=1"], scratch)
    tarball.unlink()


def complaints(compiler: Path, folder: Path, boards: list[Any]) -> tuple[str, set[int]]:
    """What TypeScript has to say about them, and which of them it is about."""
    text, ends = TYPES.read_text(), []
    for index, board in enumerate(boards):
        text += f"export const d{index}: Ours = {json.dumps(board, indent=1)};\n"
        ends.append(text.count("\n"))
    (folder / "all.ts").write_text(text)
    (folder / "node_modules").symlink_to(compiler / "node_modules")
    command = ["node", str(compiler / "node_modules/typescript/lib/tsc.js"), *OPTIONS, "all.ts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    lines = [int(line) for line in re.findall(r"^all\.ts\((\d+),", done.stdout, re.MULTILINE)]
    return done.stdout + done.stderr, {bisect_left(ends, line) for line in lines}


def test_grafana_knows_everything_that_is_in_them(compiler: Path, tmp_path: Path) -> None:
    assert complaints(compiler, tmp_path, list(grafana.dashboards().values())) == ("", set())


def _spoilt(how: str) -> dict[str, Any]:
    board = grafana.dashboards()["innoscope-server"]
    panel = next(one for one in board["panels"] if one["type"] == "timeseries")
    if how == "unknown option":
        panel["options"]["lengend"] = {}
    elif how == "unknown value":
        panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] = "stacked"
    elif how == "wrong type":
        panel["gridPos"]["x"] = "0"
    else:
        board["templating"]["list"][1]["refreshes"] = 2
    return board


def test_the_check_finds_what_is_wrong(compiler: Path, tmp_path: Path) -> None:
    ways = ("unknown option", "unknown value", "wrong type", "unknown key of a variable")
    text, found = complaints(compiler, tmp_path, [_spoilt(how) for how in ways])

    assert found == set(range(len(ways))), text
