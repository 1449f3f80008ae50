"""Test that the dashboards' JSON conforms to Grafana's types, and that the mixin contains all files."""

from __future__ import annotations

import json
import re
import subprocess
from bisect import bisect_left
from pathlib import Path
from typing import Any

import pytest

import grafana
from generate import dashboards
from generate.__main__ import mixin_rules
from npm import package
from servers import ensure_commands

ROOT = Path(__file__).parents[2]
TYPES = ROOT / "tests" / "schema" / "dashboard.ts"
#: npm packages: name, version and the registry's integrity string.
PACKAGES = {
    ("@grafana/schema", "13.2.3"): (
        "sha512-rk8FEO7yuFfRTK/JD39747SZFQ+iCTQbpm6Mh2OjnqGx/g/uQQFx56t64eCLXWEyoR68ru4cigcGKrXk+ozrLg=="
    ),
    ("typescript", "5.9.3"): (
        "sha512-jl1vZzPDinLr9eUt3J/t7V6FgNEw9QjvBPdysz9KfQDD41fQrC2Y4vKQdiaUpFT4bXlb1RHhLpp8wtm6M5TgSw=="
    ),
}
OPTIONS = (
    "--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--module", "esnext",
    "--moduleResolution", "bundler",
)  # fmt: skip


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with both packages in node_modules."""
    home = tmp_path_factory.mktemp("schema")
    for (name, version), integrity in PACKAGES.items():
        place = home / "node_modules" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(package(name, version, integrity))
    return home


def complaints(compiler: Path, folder: Path, boards: list[Any]) -> tuple[str, set[int]]:
    """Return TypeScript's messages, and the indices of the dashboards concerned."""
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


def test_all_dashboards_conform_to_grafanas_types(compiler: Path, tmp_path: Path) -> None:
    assert complaints(compiler, tmp_path, list(grafana.dashboards().values())) == ("", set())


def _broken(how: str) -> dict[str, Any]:
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


def test_wrong_options_and_types_are_rejected(compiler: Path, tmp_path: Path) -> None:
    errors = ("unknown option", "unknown value", "wrong type", "unknown key of a variable")
    text, found = complaints(compiler, tmp_path, [_broken(error) for error in errors])

    assert found == set(range(len(errors))), text


@pytest.mark.parametrize(
    ("field", "expected"),
    [("grafanaDashboards", dashboards()), *mixin_rules().items()],
    ids=["grafanaDashboards", *mixin_rules()],
)
def test_the_mixin_contains_all_dashboards_alerts_and_rules(field: str, expected: object) -> None:
    ensure_commands("jsonnet")
    command = ["jsonnet", "--exec", f"(import 'dashboards/mixin.libsonnet').{field}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
