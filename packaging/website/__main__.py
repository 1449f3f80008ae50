"""``python -m website``: build the documentation's site in build/site, in a folder named after the version.

The folders of other versions are kept. The pages have a list of all versions.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path

from distribution import environment
from distribution.metadata import PACKAGING, ROOT, Metadata, run

FOLDER = PACKAGING / "website"
CONFIGURATION = FOLDER / "mkdocs.yml"
REQUIREMENTS = FOLDER / "requirements.txt"
_START = (
    '<!doctype html><meta charset="utf-8"><title>Innoscope</title>'
    '<meta http-equiv="refresh" content="0; url={}/index.html">\n'
)


def main() -> None:
    """Build the site, and print its path."""
    parser = argparse.ArgumentParser(prog="website", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "site", help="folder of all versions [build/site]"
    )
    parser.add_argument("--version", default=Metadata.read().version, help="[from pyproject.toml]")
    wanted = parser.parse_args()
    build(environment.install(REQUIREMENTS, ROOT / "build"), wanted.out / wanted.version)
    start = write_versions(wanted.out)
    print(f"{start}\nTo read it: python3 -m http.server --bind 127.0.0.1 --directory {wanted.out}")


def build(tools: Path, out: Path, prefix: tuple[str, ...] = (), configuration: Path = CONFIGURATION) -> None:
    """Build the site in ``out``. ``prefix`` is a command that runs mkdocs.

    Raise CalledProcessError if mkdocs warns: a link is broken, or a page is missing from the navigation.
    (``--quiet`` would suppress the warnings and also ignore them.)
    """
    command = [*prefix, str(tools / "bin/python"), "-m", "mkdocs", "build", "--strict"]
    settings = {"PYTHONPATH": str(PACKAGING), "PYTHONDONTWRITEBYTECODE": "1", "NO_MKDOCS_2_WARNING": "1"}
    run(
        [*command, f"--config-file={configuration}", f"--site-dir={out.absolute()}"],
        env=os.environ | settings,
    )


def write_versions(out: Path) -> Path:
    """Write the list of versions and a start page that opens the newest one; return the start page."""
    versions = sorted((page.parent.name for page in out.glob("*/index.html")), key=_order, reverse=True)
    listed = [{"version": version, "title": version, "aliases": []} for version in versions]
    (out / "versions.json").write_text(json.dumps(listed, indent=1) + "\n")
    start = out / "index.html"
    start.write_text(_START.format(versions[0]))
    return start


def _order(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


if __name__ == "__main__":
    main()
