"""Convert the dataclasses of an incident file to JSON values and back.

Files are untrusted. msgspec checks the types (common/typed.py). This module checks what would have to be
repeated in every type: the magnitude of integers is below 2^64, and strings contain no characters that can
control a terminal. ``encode`` escapes such characters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from innoscope.common import sanitize
from innoscope.common.typed import convert_untrusted
from innoscope.diagnose.evidence import Evidence
from innoscope.diagnose.incident.model import Capture
from innoscope.memory.locks.held import HeldLock
from innoscope.sampling.snapshot_history import SnapshotSummary

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: Control characters (except line feeds and tabs), surrogates, Unicode's line and paragraph separators, and
#: characters that change the text direction.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_BIGGEST: Final = 1 << 64
#: The JSON form of ``SnapshotSummary.threads``, whose keys are not strings.
_Pairs: TypeAlias = list[tuple[tuple[str, str], int]]


class DamagedValue(ValueError):
    """A JSON value does not match its type, or contains a control character or an integer out of range."""


def encode(value: Any) -> Any:
    """Return the JSON value of a dataclass or of a part of one."""
    if isinstance(value, str):
        return _kept(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, list | tuple):
        return [encode(one) for one in value]
    if isinstance(value, Mapping):
        return {_kept(str(key)): encode(one) for key, one in value.items()}
    kind: type = type(value)
    found = {key: encode(getattr(value, name)) for name, key in _keys(kind).items()}
    if isinstance(value, SnapshotSummary):
        found["threads"] = [[encode(key), count] for key, count in value.threads.items()]
    return found


def decode(kind: type[T], value: Any) -> T:
    """Return the dataclass that the JSON value represents, with tuples instead of lists.

    Raise DamagedValue if the value is invalid. Unknown keys are ignored.
    """
    _check(value)
    try:
        return convert_untrusted(_named(kind, value), kind, strict=False)
    except ValueError as error:
        raise DamagedValue(str(error)) from error


def plain(value: T) -> T:
    """Return the value after encoding and decoding it."""
    return decode(type(value), encode(value))


def key_of(one: Field[Any]) -> str:
    """Return the JSON key of a dataclass field: its metadata ``key`` if set, else its name."""
    return str(one.metadata.get("key", one.name))


@cache
def _keys(kind: type) -> dict[str, str]:
    """Return the JSON keys of a dataclass by the names of its fields."""
    return {one.name: key_of(one) for one in fields(kind)}


def _kept(text: str) -> str:
    """Return the sanitized string. Tabs are kept, because the server's output may contain them."""
    return "\t".join(map(sanitize.block, text.split("\t"))) if not text.isprintable() else text


def _check(value: Any) -> None:
    """Raise DamagedValue if a text or number is not allowed. The JSON parser limits the recursion depth."""
    if isinstance(value, str):
        if not value.isprintable() and _UNPRINTABLE.search(value):
            raise DamagedValue("control characters in a text")
    elif isinstance(value, dict):
        for key, one in value.items():
            _check(key)
            _check(one)
    elif isinstance(value, list):
        for one in value:
            _check(one)
    elif isinstance(value, int) and not -_BIGGEST < value < _BIGGEST:
        raise DamagedValue("number out of range")


def _named(kind: type, value: Any) -> Any:
    """Return the JSON object of a dataclass with its fields' names as keys, or any other value as is."""
    if not isinstance(value, dict) or not is_dataclass(kind):
        return value
    found = {name: value[key] for name, key in _keys(kind).items() if key in value}
    for name, convert in _PARTS.get(kind, {}).items():
        if name in found:
            found[name] = convert(found[name])
    return found


def _each(kind: type) -> Callable[[Any], Any]:
    def named(value: Any) -> Any:
        return [_named(kind, one) for one in value] if isinstance(value, list) else value

    return named


def _counts(pairs: Any) -> dict[tuple[str, str], int]:
    return dict(convert_untrusted(pairs, _Pairs))


def _evidence(value: Any) -> Any:
    return _named(Evidence, value)


#: Fields whose JSON form differs at some depth from the form that msgspec expects, and functions that convert
#: it to that form.
_PARTS: Final[Mapping[type, Mapping[str, Callable[[Any], Any]]]] = {
    Capture: {"evidence": _evidence, "before": _evidence},
    Evidence: {"snapshots": _each(SnapshotSummary), "owners": _each(HeldLock)},
    SnapshotSummary: {"threads": _counts},
}
