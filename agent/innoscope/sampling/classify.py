"""Assign wait classes to stacks according to the rules in ``probes/catalog/waits.yaml``."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.sampling.wait_catalog import load

if TYPE_CHECKING:
    from innoscope.sampling.wait_catalog import Catalog

#: Wait classes of idle threads. The text format hides them by default; ``top`` hides them on request.
IDLE: Final = frozenset({"idle", "background_idle"})
#: Wait classes that do not say what a thread is doing. The thread's library functions are therefore shown.
UNEXPLAINED: Final = frozenset({"on_cpu", "runnable", "other"})


class Classifier:
    """A catalog, with the ``_native.Classifier`` methods that apply it: ``classify``, ``server_frames``."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        states = {name: one.state for name, one in catalog.classes.items() if one.state is not None}
        native = _native.Classifier(catalog.rules, states, catalog.libraries)
        self.classify: Final = native.classify
        self.server_frames: Final = native.server_frames


@cache
def default_classifier() -> Classifier:
    """Return the classifier of the installed catalog, built once."""
    return Classifier(load())


def label(wait: str) -> str:
    """Return the readable name of a wait class; the id if the catalog does not contain the class."""
    known = default_classifier().catalog.classes.get(wait)
    return known.label if known else wait
