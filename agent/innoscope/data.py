"""Where the data that comes with the program is: catalogs, BPF sources, headers."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path


def folder(name: str) -> Path:
    """The folder ``probes/<name>`` of the source tree, or where it was installed as ``innoscope.<name>``.

    Names: catalog, uprobes, include.
    """
    in_tree = Path(__file__).resolve().parents[2] / "probes" / name
    if in_tree.is_dir():
        return in_tree
    return Path(import_module(f"innoscope.{name}").__path__[0])
