"""Convert TOML, JSON and parsed documents into typed structures.

Errors name the file and the key and, for TOML and YAML, the line if it can be determined. The JSON that is
decoded here is written by programs, so errors in it name no line.

The types are msgspec structures, most of them ``Entry``, or dataclasses. A rule that a type cannot express is
checked in ``__post_init__``, which raises ValueError. YAML is in schema.py, because its library is slow to
import.
"""

from __future__ import annotations

import json
import re
import threading
import tomllib
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec

from innoscope.common.errors import BadFile
from innoscope.common.versions import VersionRange

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

#: msgspec ends its messages with the location: "Expected `str`, got `int` - at `$.rules[3].class`". It
#: does not name the keys of a mapping: "at `$.classes[...].label`", "at `key` in `$.classes`".
_PLACE: Final = re.compile(r"(?P<why>.*) - at (?P<key>`key` in )?`\$(?P<keys>.*)`", re.DOTALL)
#: Types whose msgspec metadata is complete. msgspec builds the metadata of a structure on first use, without
#: a lock. Another thread that uses incomplete metadata crashes (StructInfo_Convert in _core.c of msgspec
#: 0.22.0).
_described: Final[set[object]] = set()
_describing: Final = threading.Lock()
#: msgspec's message about a lone surrogate in JSON.
_LONE_SURROGATE: Final = "invalid utf-16 surrogate pair"
#: Maximum length in characters of an error message about hostile input.
_SHORT: Final = 300
_KEY: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping in a file. Unknown keys, missing keys and values of the wrong type are errors."""


class NamedEntry(Entry, frozen=True):
    """An entry that contains its key in the mapping: name_entries() sets ``name`` to the key."""

    name: str = ""


def name_entries(entries: Mapping[str, NamedEntry]) -> None:
    """Set each entry's ``name``. Call this in ``__post_init__`` of the structure that has the mapping.

    Raise ValueError if the file itself sets a ``name``.
    """
    for name, entry in entries.items():
        if entry.name:
            raise ValueError(f"{name}: unknown field `name`")
        msgspec.structs.force_setattr(entry, "name", name)


#: The evidence for an entry: a source file of the server, and the versions in which the entry was checked.
#: Versions in parentheses were checked in the source code, all others by finding the symbol in a build.
Citation = Annotated[str, msgspec.Meta(pattern=r"\A[\w.]+\.(?:cc|c|h|ic)\b.*\b\d+\.\d+\.\d+")]


class ServerEntry(Entry, frozen=True):
    """An entry that may be limited to some servers: ``mysql: "5.5-5.7"``, ``mariadb: "10.6+"``, or both."""

    mysql: VersionRange | None = None
    mariadb: VersionRange | None = None

    @property
    def ranges(self) -> dict[str, VersionRange]:
        """Return the version ranges that are set, by flavour."""
        given = {"mysql": self.mysql, "mariadb": self.mariadb}
        return {flavour: versions for flavour, versions in given.items() if versions is not None}

    def fits(self, flavour: str, version: tuple[int, ...]) -> bool:
        """Return whether the entry applies to a server. Without ranges it applies to all servers."""
        ranges = self.ranges
        return not ranges or (flavour in ranges and version in ranges[flavour])


def decode_toml(text: str, kind: type[T], source: object) -> T:
    """Decode TOML from ``source``, which error messages name. Raise BadFile if it is invalid."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # an integer of 5,000 digits raises a plain ValueError
        raise BadFile(f"cannot parse {source} as TOML: {error}") from error
    return convert(document, kind, source, lambda keys: _toml_line(text, keys))


def decode_json(text: str | bytes, kind: type[T], source: object) -> T:
    """Decode JSON from ``source``, which error messages name. Raise BadFile if it is invalid."""
    _describe(kind)
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=_hook)
    except msgspec.ValidationError as error:
        raise BadFile(f"{source}: {_where(error, _parsed_json(text), kind)[1]}") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadFile(f"cannot parse {source} as JSON: {error}") from error


def encode_json(value: object) -> bytes:
    """Return a structure as JSON; bytes become base64."""
    return msgspec.json.encode(value)


def _parsed_json(text: str | bytes) -> Any:
    """Decode JSON text without checking types. Return None if the text is malformed."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def convert(document: object, kind: type[T], source: object, line_of: Any = None) -> T:
    """Convert a parsed document. Raise BadFile if it is invalid.

    ``line_of`` maps a list of keys to a line number or None.
    """
    _describe(kind)
    try:
        return msgspec.convert(document, kind, dec_hook=_hook)
    except (msgspec.ValidationError, RecursionError) as error:
        keys, words = _where(error, document, kind)
        line = line_of(keys) if line_of is not None else None
        raise BadFile(f"{source}{f', line {line}' if line else ''}: {words}") from error


def convert_untrusted(document: object, kind: type[T], *, strict: bool = True) -> T:
    """Convert a parsed document that may be large and hostile. Raise ValueError if it is invalid.

    The message does not name the keys of mappings, because finding them takes many conversions. Without
    ``strict``, numbers may be strings, as JSON has no other notation for ``inf`` and ``nan``.
    """
    _describe(kind)
    try:
        return msgspec.convert(document, kind, dec_hook=_hook, strict=strict)
    except msgspec.ValidationError as error:
        raise ValueError(_short(error)) from error


def decode_untrusted(text: bytes, kind: type[T]) -> T:
    """Decode JSON that may be large and hostile. Raise ValueError, as ``convert_untrusted`` does.

    A lone surrogate is accepted. It stands for a byte that is not UTF-8, for example in a path (PEP 383).
    """
    _describe(kind)
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=_hook)
    except msgspec.ValidationError as error:
        raise ValueError(_short(error)) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if _LONE_SURROGATE not in str(error):
            raise ValueError(_short(error)) from error
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise ValueError(_short(error)) from error
    return convert_untrusted(document, kind)


def _short(error: Exception) -> str:
    """Return an error's message, cut to ``_SHORT`` characters, with the location first."""
    place = _PLACE.fullmatch(str(error))
    words = f"{place['keys'].removeprefix('.')}: {place['why']}" if place else str(error)
    return words.removeprefix(": ")[:_SHORT]


def _describe(kind: object) -> None:
    """Make msgspec build the metadata of a type and its structures, in one thread at a time."""
    if kind not in _described:
        with _describing:
            msgspec.json.Decoder(kind, dec_hook=_hook)
            _described.add(kind)


def _hook(kind: Any, value: Any) -> Any:
    if kind is VersionRange:
        if not isinstance(value, str):  # YAML parses an unquoted 5.6 as a number
            raise ValueError(f"quote the version range: {value!r:.80}")
        return VersionRange.parse(value)
    if kind == re.Pattern[str]:
        try:
            return re.compile(value)
        except (re.error, OverflowError, RecursionError, TypeError) as error:
            raise ValueError(f"malformed regular expression {value!r:.80}: {error}") from error
    raise NotImplementedError(kind)


def _where(error: Exception, document: Any, kind: Any) -> tuple[list[Any], str]:
    """Return the path of keys to an invalid value, and the message: ``rules[3].class: Expected …``."""
    match = _PLACE.fullmatch(str(error))
    if match is None:
        return [], str(error)
    keys: list[Any] = []
    for name, index in _KEY.findall(match["keys"]):
        keys.append(_invalid_key(error, document, kind, keys) if index == "..." else name or int(index))
    if match["key"]:
        keys.append(_invalid_key(error, document, kind, keys))
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key!s:.80}" for key in keys)
    return keys, f"{path.removeprefix('.')}: {match['why']}" if path else match["why"]


def _invalid_key(error: Exception, document: Any, kind: Any, keys: list[Any]) -> Any:
    """Return the key that causes the error in the mapping at ``keys``, found by bisection."""
    mapping = document
    try:
        for key in keys:
            mapping = mapping[key]
        names = list(mapping)
        while len(names) > 1:
            half = names[: len(names) // 2]
            part = _replaced(document, keys, {name: mapping[name] for name in half})
            names = half if _error(part, kind) == str(error) else names[len(half) :]
        return names[0]
    except (AttributeError, LookupError, TypeError):  # not a mapping, but a YAML set or None
        return "*"


def _replaced(document: Any, keys: list[Any], value: Any) -> Any:
    """Return a copy of the document with another value at ``keys``."""
    if not keys:
        return value
    copy = document.copy()
    copy[keys[0]] = _replaced(document[keys[0]], keys[1:], value)
    return copy


def _error(document: Any, kind: Any) -> str | None:
    try:
        msgspec.convert(document, kind, dec_hook=_hook)
    except (msgspec.ValidationError, RecursionError) as error:
        return str(error)
    return None


def _toml_line(text: str, keys: list[Any]) -> int | None:
    """Return the line number of a key or, if not found, of its table."""
    found: int | None = None
    table: list[str | int] = []
    elements: Counter[str] = Counter()  # elements seen so far, by array of tables
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*(\[\[?)\s*([\w.\-]+)\s*\]", line):
            table = [*header[2].split(".")]
            if header[1] == "[[":
                table.append(elements[header[2]])
                elements[header[2]] += 1
            if table == keys[: len(table)]:
                found = number
        elif name := re.match(r"\s*([\w\-]+)\s*=", line):
            path = [*table, name[1]]
            if keys[: len(path)] == path:
                return number
    return found
