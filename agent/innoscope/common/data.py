"""Where the data that comes with the program is: catalogs, BPF sources, headers."""

from __future__ import annotations

from pathlib import Path


def folder(name: str) -> Path:
    """Return the folder of the package's data: catalog, uprobes, include or runbooks."""
    return Path(__file__).resolve().parents[1] / name


def catalog_path(name: str) -> Path:
    """Return a file of the catalog: metrics.yaml, waits.yaml, …"""
    return folder("catalog") / name
