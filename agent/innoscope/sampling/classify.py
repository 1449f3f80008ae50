"""Assign wait classes to stacks according to the rules in ``probes/catalog/waits.yaml``."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.sampling.wait_catalog import load

if TYPE_CHECKING:
    from innoscope.sampling.model import Frame
    from innoscope.sampling.wait_catalog import WaitCatalog

#: Wait classes of idle threads. Commands that print stacks as text hide them unless options such as ``--all``
#: select them; ``top`` hides them on request.
IDLE: Final = frozenset({"idle", "background_idle"})
#: Wait classes that do not show what a thread is doing. Its library functions are therefore displayed.
UNEXPLAINED: Final = frozenset({"on_cpu", "runnable", "other"})


class WaitClassifier:
    """A catalog, with the methods of ``_native.Classifier`` that apply it, and its lists of library code."""

    def __init__(self, catalog: WaitCatalog) -> None:
        self.catalog = catalog
        states = {name: one.state for name, one in catalog.classes.items() if one.state is not None}
        native = _native.Classifier(catalog.rules, states, catalog.libraries)
        self.classify: Final = native.classify
        self.server_frames: Final = native.server_frames
        self.libraries: Final = _native.Patterns(catalog.libraries)
        self.library_functions: Final = _native.Patterns(catalog.library_functions)


@cache
def default_classifier() -> WaitClassifier:
    """Return the classifier of the installed catalog, built once."""
    return WaitClassifier(load())


def server_frames(frames: tuple[Frame, ...], wait: str) -> tuple[Frame, ...]:
    """Return the frames to show as text: from the server's own innermost function outward.

    The library functions that this function calls are omitted, because the wait class describes what they do.
    Return all frames if the wait class is in UNEXPLAINED, or if no function is the server's own.
    """
    return frames if wait in UNEXPLAINED else default_classifier().server_frames(frames)


def server_functions(functions: tuple[str, ...], wait: str = "") -> tuple[str, ...]:
    """Do the same as ``server_frames`` for a stored stack, which contains names without modules."""
    if wait in UNEXPLAINED:
        return functions
    start = next((number for number, name in enumerate(functions) if not _is_library(name)), 0)
    return functions[start:]


def _is_library(name: str) -> bool:
    """Return whether a function (or ``module+0x…``, if it has no symbol) is not the server's own."""
    classifier = default_classifier()
    module, offset, _ = name.rpartition("+0x")
    if offset:
        return classifier.libraries.matches(module)
    return classifier.library_functions.matches(_native.plain_name(name))


def label(wait: str) -> str:
    """Return the readable name of a wait class; the id if the catalog does not contain the class."""
    known = default_classifier().catalog.classes.get(wait)
    return known.label if known else wait
