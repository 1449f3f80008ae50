"""Checking ``probes/catalog/toggles.yaml``: strict, because what it says is written into servers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from innoscope.toggles.model import Assignment, Domain, Generation, Raw, Risk, Setting, Toggle, Way

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_FLAVOURS: Final = ("mysql", "mariadb")
_WAYS: Final = ("sql", "memory")
_BOUNDS: Final = ("raise", "lower")
_SIZES: Final = {"unsigned": (1, 4, 8), "signed": (1, 4, 8), "float": (4, 8)}
_TOGGLE_KEYS: Final = {"title", "what", "risk", "values", "servers", "also", "undo"}
_GENERATION_KEYS: Final = {"flavour", "from", "below", "ways", "refused", "never"}
_VALUE_KEYS: Final = {"values", "scale", "low", "high"}
_SQL_KEYS: Final = _VALUE_KEYS | {"bound"}
_MEMORY_KEYS: Final = _VALUE_KEYS | {"kind", "size", "plausible", "variable"}
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SYMBOL: Final = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_VERSION: Final = re.compile(r"\d{1,3}(?:\.\d{1,3}){0,3}", re.ASCII)
_LARGEST: Final = 2.0**64
_SWITCH: Final = ("on", "off")

#: What no catalog may write to memory, by symbol or by the system variable that shows it.
NEVER_RAW: Final = re.compile(
    r"recv_\w*|btr_\w*|ibuf\w*|\w*(?:doublewrite|dblwr|hash_index|flush_method|dirty_pages|checksum)\w*"
    r"|\w*buf_pool_modified\w*|\w*io_capacity\w*|\w*shutdown\w*|srv_force_recovery|innodb_force_recovery"
)
#: Symbols that are safe to write on some servers only: (flavour, first version where it is not).
_ONLY_BELOW: Final[Mapping[str, tuple[str, tuple[int, ...]]]] = {
    "srv_startup_is_before_trx_rollback_phase": ("mysql", (5, 6)),
}


class Wrong(Exception):
    """What is wrong, and where: entry and key."""


def toggles(document: Any) -> dict[str, Toggle]:
    """The parsed file as toggles by name. Raises Wrong for whatever is not as it must be."""
    _keys("the file", document, {"version", "toggles"}, {"version", "toggles"})
    if document["version"] != 1 or isinstance(document["version"], bool):
        raise Wrong("version is not 1")
    entries = document["toggles"]
    if not isinstance(entries, dict) or not entries:
        raise Wrong("toggles is not a mapping with entries")
    return {name: _toggle(name, entry) for name, entry in entries.items()}


def _toggle(name: Any, entry: Any) -> Toggle:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Wrong(f"{name!r:.80} is not a name")
    _keys(name, entry, _TOGGLE_KEYS, {"title", "what", "risk", "values", "servers"})
    risk = entry["risk"]
    if not isinstance(risk, str) or risk not in {one.value for one in Risk}:
        raise Wrong(f"{name}: risk is not harmless, careful or dangerous")
    domain = _domain(name, entry["values"])
    generations = tuple(
        _generation(where, one, domain) for where, one in _items(f"{name}: servers", entry["servers"])
    )
    _no_overlap(name, generations)
    return Toggle(
        name=name,
        title=_text(f"{name}: title", entry["title"]),
        what=_text(f"{name}: what", entry["what"]),
        risk=Risk(risk),
        domain=domain,
        generations=generations,
        also=_maybe_text(f"{name}: also", entry.get("also")),
        undo=_maybe_text(f"{name}: undo", entry.get("undo")),
    )


def _domain(name: str, values: Any) -> Domain:
    where = f"{name}: values"
    if values == "switch":
        return Domain(words=_SWITCH)
    if isinstance(values, list):
        words = tuple(_word(where, word) for word in values)
        if len(words) < 2 or len(set(words)) != len(words):
            raise Wrong(f"{where}: needs two words or more, each once")
        return Domain(words=words)
    _keys(where, values, {"low", "high", "unit"}, {"low", "high", "unit"})
    low, high = (_number(f"{where}: {key}", values[key]) for key in ("low", "high"))
    if low >= high:
        raise Wrong(f"{where}: low is not below high")
    return Domain(low=low, high=high, unit=_text(f"{where}: unit", values["unit"]))


def _generation(where: str, entry: Any, domain: Domain) -> Generation:
    _keys(where, entry, _GENERATION_KEYS, {"flavour", "from", "below"})
    if entry["flavour"] not in _FLAVOURS:
        raise Wrong(f"{where}: flavour is not mysql or mariadb")
    since, below = (_version(f"{where}: {key}", entry[key]) for key in ("from", "below"))
    if since >= below:
        raise Wrong(f"{where}: from is not before below")
    if ("ways" in entry) == ("refused" in entry):
        raise Wrong(f"{where}: needs either ways or refused")
    ways = [_way(spot, one, domain) for spot, one in _items(f"{where}: ways", entry.get("ways", []), least=0)]
    kinds = [way.kind for way in ways]
    if "ways" in entry and (not ways or len(set(kinds)) != len(kinds)):
        raise Wrong(f"{where}: ways needs one or more, each kind once")
    never = _never(where, entry.get("never", {}), kinds)
    generation = Generation(
        entry["flavour"],
        since,
        below,
        tuple(ways),
        _maybe_text(f"{where}: refused", entry.get("refused")),
        never,
    )
    _not_raw(where, generation)
    return generation


def _never(where: str, entry: Any, kinds: list[str]) -> dict[str, str]:
    _keys(f"{where}: never", entry, set(_WAYS), set())
    if set(entry) & set(kinds):
        raise Wrong(f"{where}: never forbids a way that ways has")
    return {kind: _text(f"{where}: never: {kind}", why) for kind, why in entry.items()}


def _not_raw(where: str, generation: Generation) -> None:
    """Nothing that is known to do harm, whatever the rest of the entry says."""
    for way in generation.ways:
        for one in way.assignments if way.kind == "memory" else ():
            name = one.setting.name
            if NEVER_RAW.fullmatch(name) or NEVER_RAW.fullmatch(one.setting.variable or ""):
                raise Wrong(f"{where}: {name} must never be written to memory")
            flavour, first = _ONLY_BELOW.get(name, (generation.flavour, None))
            if flavour != generation.flavour or (first and (generation.below or first) > first):
                raise Wrong(f"{where}: {name} must not be written to memory on these servers")


def _way(where: str, entry: Any, domain: Domain) -> Way:
    _keys(where, entry, {*_WAYS, "note"}, set())
    kinds = [kind for kind in _WAYS if kind in entry]
    if len(kinds) != 1:
        raise Wrong(f"{where}: needs one of sql, memory")
    kind, where = kinds[0], f"{where}: {kinds[0]}"
    note = _maybe_text(f"{where}: note", entry.get("note"))
    settings = entry[kind]
    if not isinstance(settings, dict) or not settings:
        raise Wrong(f"{where}: is not a mapping of what is set")
    assignments = tuple(_assignment(where, kind, name, one, domain) for name, one in settings.items())
    if all(one.bound for one in assignments):
        raise Wrong(f"{where}: sets nothing of its own")
    return Way(kind, assignments, note=note)


def _assignment(where: str, kind: str, name: Any, entry: Any, domain: Domain) -> Assignment:
    memory = kind == "memory"
    if not isinstance(name, str) or not (_SYMBOL if memory else _NAME).fullmatch(name):
        raise Wrong(f"{where}: {name!r:.80} is not a name")
    where = f"{where}: {name}"
    _keys(
        where,
        entry,
        _MEMORY_KEYS if memory else _SQL_KEYS,
        {"kind", "size", "plausible"} if memory else set(),
    )
    bound = entry.get("bound")
    if bound is not None and (bound not in _BOUNDS or domain.words):
        raise Wrong(f"{where}: bound is not raise or lower, of a number")
    low, high = (_maybe_number(f"{where}: {key}", entry.get(key)) for key in ("low", "high"))
    _limits(where, low, high, domain)
    scale = entry.get("scale")
    if scale is not None and (not isinstance(scale, float) or not 0 < scale <= _LARGEST or domain.words):
        raise Wrong(f"{where}: scale is not a number with a point, of a toggle with a number")
    made = Assignment(
        setting=_setting(where, name, entry) if memory else Setting(name),
        values=_values(where, entry.get("values"), domain, memory),
        scale=scale,
        low=low,
        high=high,
        bound=bound,
    )
    if memory:
        _plausible(where, made, domain)
    return made


def _limits(where: str, low: float | None, high: float | None, domain: Domain) -> None:
    if domain.low is None or domain.high is None:
        if (low, high) != (None, None):
            raise Wrong(f"{where}: low and high are for numbers")
        return
    least, most = domain.low if low is None else low, domain.high if high is None else high
    if not domain.low <= least < most <= domain.high:
        raise Wrong(f"{where}: low and high are not within the toggle's own")


def _values(where: str, entry: Any, domain: Domain, memory: bool) -> dict[str, Raw] | None:
    where = f"{where}: values"
    if not domain.words:
        if entry is not None:
            raise Wrong(f"{where}: the toggle takes a number")
        return None
    if entry is None:
        if domain.words == _SWITCH:
            return {"on": 1, "off": 0} if memory else {"on": True, "off": False}
        entry = {word: word for word in domain.words}
    if not isinstance(entry, dict) or not entry:
        raise Wrong(f"{where}: is not a mapping of words")
    made = {_word(where, word): _raw(where, raw, memory) for word, raw in entry.items()}
    unknown = made.keys() - set(domain.words)
    if unknown or len(made) != len(entry):
        raise Wrong(
            f"{where}: {', '.join(sorted(unknown)) or 'a word twice'} is not among the toggle's words"
        )
    if domain.words == _SWITCH and len(made) != len(_SWITCH):
        raise Wrong(f"{where}: needs on and off")
    return made


def _raw(where: str, raw: Any, memory: bool) -> Raw:
    if not memory and (isinstance(raw, bool) or (isinstance(raw, str) and _SYMBOL.fullmatch(raw))):
        return raw
    number = _number(where, raw)
    return int(raw) if isinstance(raw, int) else number


def _setting(where: str, name: str, entry: dict[str, Any]) -> Setting:
    kind, size, variable = entry["kind"], entry["size"], entry.get("variable")
    if not isinstance(kind, str) or kind not in _SIZES:
        raise Wrong(f"{where}: kind is not unsigned, signed or float")
    if not isinstance(size, int) or isinstance(size, bool) or size not in _SIZES[kind]:
        raise Wrong(f"{where}: size is not {', '.join(map(str, _SIZES[kind]))}")
    plausible = entry["plausible"]
    if not isinstance(plausible, list) or len(plausible) != 2:
        raise Wrong(f"{where}: plausible is not [lowest, highest]")
    low, high = (_number(f"{where}: plausible", one) for one in plausible)
    least, most = _range(kind, size)
    if not least <= low < high <= most:
        raise Wrong(f"{where}: plausible does not fit {size} bytes, {kind}")
    if variable is not None and (not isinstance(variable, str) or not _NAME.fullmatch(variable)):
        raise Wrong(f"{where}: variable is not a name")
    return Setting(name, kind, size, (low, high), variable)


def _range(kind: str, size: int) -> tuple[float, float]:
    if kind == "float":
        return -_LARGEST, _LARGEST
    most = 2.0 ** (8 * size - (kind == "signed"))
    return (0.0 if kind == "unsigned" else -most), most - 1


def _plausible(where: str, made: Assignment, domain: Domain) -> None:
    """What can be written must be plausible itself, or undoing would refuse to touch it."""
    low, high = made.setting.plausible or (0.0, 0.0)
    given = [raw for raw in (made.values or {}).values() if not isinstance(raw, str)]
    if domain.low is not None and domain.high is not None:
        limits = (
            domain.low if made.low is None else made.low,
            domain.high if made.high is None else made.high,
        )
        given = [limit * (made.scale or 1.0) for limit in limits]
    for value in given:
        if not low <= value <= high:
            raise Wrong(f"{where}: values: {value:g} is outside of plausible")


def _no_overlap(name: str, generations: tuple[Generation, ...]) -> None:
    for flavour in _FLAVOURS:
        end: tuple[int, ...] = ()
        for one in sorted((one for one in generations if one.flavour == flavour), key=lambda one: one.since):
            if one.since < end:
                raise Wrong(f"{name}: servers: two entries for {flavour} {'.'.join(map(str, one.since))}")
            end = one.below or end


def _keys(where: str, entry: Any, allowed: set[str], needed: set[str]) -> None:
    if not isinstance(entry, dict):
        raise Wrong(f"{where} is not a mapping")
    unknown = [key for key in entry if not isinstance(key, str) or key not in allowed]
    if unknown:
        raise Wrong(f"{where}: unknown key {unknown[0]!r:.80}")
    missing = sorted(needed - entry.keys())
    if missing:
        raise Wrong(f"{where}: {' and '.join(missing)} is missing")


def _items(where: str, entry: Any, least: int = 1) -> Iterable[tuple[str, Any]]:
    if not isinstance(entry, list) or len(entry) < least:
        raise Wrong(f"{where} is not a list with entries")
    return [(f"{where} {number}", one) for number, one in enumerate(entry, 1)]


def _word(where: str, word: Any) -> str:
    if isinstance(word, bool):  # YAML's own reading of a bare on and off
        return "on" if word else "off"
    if not isinstance(word, str) or not _NAME.fullmatch(word):
        raise Wrong(f"{where}: {word!r:.80} is not a word")
    return word


def _text(where: str, text: Any) -> str:
    if not isinstance(text, str) or not text.strip() or not text.isprintable():
        raise Wrong(f"{where} is not a line of text")
    return text


def _maybe_text(where: str, text: Any) -> str | None:
    return None if text is None else _text(where, text)


def _number(where: str, number: Any) -> float:
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= _LARGEST:
        raise Wrong(f"{where} is not a number")
    return float(number)


def _maybe_number(where: str, number: Any) -> float | None:
    return None if number is None else _number(where, number)


def _version(where: str, text: Any) -> tuple[int, ...]:
    if not isinstance(text, str) or not _VERSION.fullmatch(text):
        raise Wrong(f"{where} is not a version in quotes")
    return tuple(map(int, text.split(".")))
