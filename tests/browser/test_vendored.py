"""The page's libraries are identical to the published files."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from npm import package
from servers import cache

VENDOR = resources.files("innoscope.daemon.http.page") / "vendor"
LIST: list[dict[str, Any]] = json.loads((VENDOR / "libraries.json").read_text())["libraries"]


@pytest.mark.parametrize("library", LIST, ids=[one["package"] for one in LIST])
def test_vendored_files_are_unmodified(library: dict[str, Any]) -> None:
    published = package(library["package"], library["version"], library["integrity"])
    for file in library["files"]:
        assert cache.sha256(published / file["from"]) == file["sha256"], file
        assert (VENDOR / file["name"]).read_bytes() == (published / file["from"]).read_bytes(), file


def test_only_listed_files_are_vendored_each_library_with_its_licence() -> None:
    listed = {file["name"] for library in LIST for file in library["files"]}
    assert {file.name for file in VENDOR.iterdir()} == {*listed, "libraries.json"}
    assert {f"LICENSE.{library['package']}" for library in LIST} <= listed
