"""From a stack to a wait class. Which names mean what is data: ``probes/catalog/waits.yaml``."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.sampling.wait_catalog import load

if TYPE_CHECKING:
    from innoscope.sampling.wait_catalog import Catalog

#: Classes of threads that want nothing: views hide them on request.
IDLE: Final = frozenset({"idle", "background_idle"})


class Classifier:
    """A catalog, and ``classify``, which applies its rules (see ``_native.Classifier``)."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.classify: Final = _native.Classifier(catalog.rules, catalog.libraries).classify


@cache
def default_classifier() -> Classifier:
    """The classifier of the installed catalog, built once."""
    return Classifier(load())


def label(wait: str) -> str:
    """The human name of a wait class; the id itself for one the catalog does not have."""
    known = default_classifier().catalog.classes.get(wait)
    return known.label if known else wait
