"""Convert dataclasses to JSON values and back using type hints, so that new fields need no code here.

Files are untrusted. Decoding checks every type, requires numbers to be within limits, and rejects strings
with characters that can control a terminal. ``encode`` escapes unprintable characters.
"""

from __future__ import annotations

import collections.abc
import math
import re
import types
import typing
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from innoscope.common import samples, sanitize
from innoscope.diagnose import evidence
from innoscope.memory.locks import held
from innoscope.sampling import snapshot_history

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: Names that modules use in type hints but import only under TYPE_CHECKING.
_NAMES: Final = vars(collections.abc) | vars(samples) | vars(snapshot_history) | vars(held) | vars(evidence)
#: Control characters except line feeds and tabs, surrogates, and characters that change the text direction.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_BIGGEST: Final = 1 << 64
_NOT_FINITE: Final = {str(number): number for number in (math.inf, -math.inf, math.nan)}


class Damaged(ValueError):
    """A JSON value does not match its type. The message names the field."""


@dataclass(frozen=True, slots=True)
class _Codec:
    """The functions that convert one type. Only ``decode`` validates its argument.

    ``takes`` lists the types that the JSON value may have.
    """

    takes: tuple[type, ...]
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def encode(value: Any) -> Any:
    """Return the JSON value of a dataclass. Raise TypeError for a type that is not supported."""
    return _codec(type(value)).encode(value)


def decode(kind: type[T], value: Any) -> T:
    """Return the dataclass that the JSON value represents, with tuples instead of lists.

    Raise Damaged if the value is invalid.
    """
    return cast("T", _checked(_codec(kind), kind.__name__)(value))


def plain(value: T) -> T:
    """Return the value after encoding and decoding it."""
    return decode(type(value), encode(value))


def key_of(one: Field[Any]) -> str:
    """Return the JSON key of a dataclass field: its metadata ``key`` if set, else its name."""
    return str(one.metadata.get("key", one.name))


def _codec(hint: Any) -> _Codec:
    return _made(hint)


@cache
def _made(hint: Any) -> _Codec:
    if is_dataclass(hint):
        return _of_dataclass(cast("type", hint))
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _of_union([_codec(argument) for argument in arguments], arguments)
    if origin is tuple:
        return _of_sequence(_codec(arguments[0])) if arguments[-1] is ... else _of_places(arguments)
    if origin in (collections.abc.Mapping, dict):
        return _of_texts(_codec(arguments[1])) if arguments[0] is str else _of_pairs(*arguments)
    raise TypeError(f"cannot store {hint} in an incident file")


def _of_dataclass(kind: type) -> _Codec:
    hints = typing.get_type_hints(kind, localns=_NAMES)
    parts = [(one, key_of(one), _codec(hints[one.name])) for one in fields(kind)]
    checked = [
        (one.name, key, _checked(codec, f"{kind.__name__}.{key}"), _required(one))
        for one, key, codec in parts
    ]

    def encoded(value: Any) -> dict[str, Any]:
        return {key: codec.encode(getattr(value, one.name)) for one, key, codec in parts}

    def decoded(value: dict[str, Any]) -> Any:
        found = {}
        for name, key, of, required in checked:
            if key in value:
                found[name] = of(value[key])
            elif required:
                raise Damaged(f"{kind.__name__}.{key} is missing")
        return kind(**found)

    return _Codec((dict,), encoded, decoded)


def _required(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _of_union(codecs: list[_Codec], arguments: tuple[Any, ...]) -> _Codec:
    """Return the codec of a union. The JSON type selects the member, so only one can be a dataclass."""
    by_type = {kind: codec for codec in reversed(codecs) for kind in codec.takes}
    of_value = dict(zip(arguments, codecs, strict=True))
    container = next((codec for codec in codecs if codec.takes in ((list,), (dict,))), codecs[0])

    def encoded(value: Any) -> Any:
        return (of_value.get(type(value)) or container).encode(value)

    def decoded(value: Any) -> Any:
        codec = by_type.get(type(value))
        if codec is None:
            raise Damaged(f"unexpected {type(value).__name__}")
        return codec.decode(value)

    return _Codec(tuple(by_type), encoded, decoded)


def _of_sequence(item: _Codec) -> _Codec:
    of = _checked(item, "an item")
    return _Codec(
        (list,), lambda value: [item.encode(one) for one in value], lambda value: tuple(map(of, value))
    )


def _of_places(arguments: tuple[Any, ...]) -> _Codec:
    codecs = [_codec(argument) for argument in arguments]
    checked = [_checked(codec, f"place {number}") for number, codec in enumerate(codecs)]

    def decoded(value: list[Any]) -> tuple[Any, ...]:
        if len(value) != len(checked):
            raise Damaged(f"expected {len(checked)} items, got {len(value)}")
        return tuple(of(one) for of, one in zip(checked, value, strict=True))

    return _Codec(
        (list,), lambda value: [codec.encode(one) for codec, one in zip(codecs, value, strict=True)], decoded
    )


def _of_texts(item: _Codec) -> _Codec:
    """Return the codec of a mapping with string keys, which becomes a JSON object."""
    of = _checked(item, "a value")
    return _Codec(
        (dict,),
        lambda value: {_kept(key): item.encode(one) for key, one in value.items()},
        lambda value: {_text(key): of(one) for key, one in value.items()},
    )


def _of_pairs(key: Any, value: Any) -> _Codec:
    """Return the codec of a mapping with keys of another type, which becomes a JSON list of pairs."""
    pairs = _of_sequence(_of_places((key, value)))
    return _Codec(
        (list,), lambda mapping: pairs.encode(mapping.items()), lambda found: dict(pairs.decode(found))
    )


def _checked(codec: _Codec, where: str) -> Callable[[Any], Any]:
    """Return ``codec.decode`` with a type check. Errors contain ``where``, the name of the field."""
    takes, of = codec.takes, codec.decode

    def decoded(value: Any) -> Any:
        if type(value) not in takes:
            raise Damaged(f"{where}: unexpected {type(value).__name__}")
        return of(value)

    return decoded


def _kept(text: str) -> str:
    """Return the sanitized string. Tabs are kept, because the server's output may contain them."""
    return "\t".join(map(sanitize.block, text.split("\t"))) if not text.isprintable() else text


def _text(value: str) -> str:
    if _UNPRINTABLE.search(value):
        raise Damaged("control characters in a text")
    return value


def _integer(value: int) -> int:
    if not -_BIGGEST < value < _BIGGEST:
        raise Damaged("number out of range")
    return value


def _number(value: float | str) -> float:
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, str):
        if value not in _NOT_FINITE:
            raise Damaged("expected a number, got a text")
        return _NOT_FINITE[value]
    return value


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _anything(value: Any) -> Any:
    """Check and decode a value of any type recursively. The JSON parser has already limited its depth."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {_text(key): _anything(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_anything(one) for one in value]
    return value if isinstance(value, bool | None) else _number(value)


def _made_plain(value: Any) -> Any:
    if isinstance(value, str):
        return _kept(value)
    if isinstance(value, dict):
        return {_kept(str(key)): _made_plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_made_plain(one) for one in value]
    return _finite(value) if isinstance(value, float) else value


_SIMPLE: Final[dict[Any, _Codec]] = {
    str: _Codec((str,), _kept, _text),
    int: _Codec((int,), lambda value: value, _integer),
    float: _Codec((float, int, str), _finite, _number),
    bool: _Codec((bool,), lambda value: value, lambda value: value),
    types.NoneType: _Codec((types.NoneType,), lambda value: value, lambda value: value),
    Any: _Codec((str, int, float, bool, types.NoneType, list, dict), _made_plain, _anything),
}
