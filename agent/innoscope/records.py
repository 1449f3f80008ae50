"""Data classes that are cheap to make: records, which nobody changes, and structures."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: Stands for a default that is made anew for each object.
_MADE: Final = object()


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A data class with slots and a hash, whose fields the type checker lets nobody set.

    It is what ``dataclass(frozen=True, slots=True)`` makes, but that Python itself lets fields be set, that
    ``__init__`` is compiled only when the first object is made, and that there is no ``__post_init__``. So a
    class takes a tenth of the time, and `innoscope diagnose` starts with ninety of them.
    """
    return _made(cls, hashed=True)


@dataclass_transform(field_specifiers=(field,))
def structure(cls: type[T]) -> type[T]:
    """The same, whose fields may be set; so it has no hash. It is what ``dataclass(slots=True)`` makes."""
    return _made(cls, hashed=False)


def _made(cls: type[T], *, hashed: bool) -> type[T]:
    cls.__doc__ = cls.__doc__ or cls.__name__  # else ``dataclass`` makes one of the signature, in 3 ms
    made: Any = dataclass(slots=True, init=False, repr=False, eq=False)(cls)
    values = _getter([one.name for one in fields(made) if one.compare])
    told = [one.name for one in fields(made) if one.repr]

    def init(self: Any, *given: Any, **named: Any) -> None:
        made.__init__ = _initializer(made)
        made.__init__(self, *given, **named)

    def same(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def number(self: Any) -> int:
        return hash(values(self))

    def text(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in told)})"

    made.__init__, made.__eq__, made.__repr__ = init, same, text
    made.__hash__ = number if hashed else None
    return cast("type[T]", made)


def _getter(names: list[str]) -> Callable[[Any], Any]:
    return attrgetter(*names) if names else lambda _: ()


def _initializer(cls: type[Any]) -> Callable[..., None]:
    """What takes the fields in their order or by name, and their defaults."""
    known: dict[str, Any] = {"_made": _MADE}
    lines, parameters = [], []
    for one in fields(cls):
        parameters.append(_parameter(one, known))
        anew = one.default_factory is not MISSING
        value = f"_make_{one.name}() if {one.name} is _made else {one.name}" if anew else one.name
        lines.append(f"    self.{one.name} = {value}")
    exec("\n".join([f"def __init__(self, {', '.join(parameters)}):", *lines, "    pass"]), known)  # noqa: S102
    initializer: Callable[..., None] = known["__init__"]
    initializer.__qualname__ = f"{cls.__qualname__}.__init__"
    return initializer


def _parameter(one: Field[Any], known: dict[str, Any]) -> str:
    """Its place in the head; ``known`` gets what the text refers to."""
    if one.default_factory is not MISSING:
        known[f"_make_{one.name}"] = one.default_factory
        return f"{one.name}=_made"
    if one.default is MISSING:
        return one.name
    known[f"_default_{one.name}"] = one.default
    return f"{one.name}=_default_{one.name}"
