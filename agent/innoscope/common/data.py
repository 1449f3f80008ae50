"""Find and read the data files of the package: catalogs, BPF sources, headers."""

from __future__ import annotations

from pathlib import Path


def folder(name: str) -> Path:
    """Return the path of a data directory: catalog, uprobes, include or runbooks."""
    return Path(__file__).resolve().parents[1] / name


def catalog_path(name: str) -> Path:
    """Return the path of a catalog file: metrics.yaml, waits.yaml, …"""
    return folder("catalog") / name
