"""Encode snapshots as OTLP profiles in JSON. Experimental, because the signal is in development.

Format: profiles/v1development/profiles.proto in open-telemetry/opentelemetry-proto, version 1.10.0 and newer,
as in the Go module go.opentelemetry.io/proto/slim/otlp/profiles/v1development 0.4.1. Names of fields still
change between versions, and receivers ignore fields with unknown names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from innoscope.common import sanitize
from innoscope.daemon.push.otlp_encoding import SCOPE, OtlpPayload, payload, resource
from innoscope.sampling.profile_history import merged, report
from innoscope.sampling.render.pprof import samples

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from innoscope.daemon.push.otlp_encoding import Attributes
    from innoscope.daemon.push.profile_merger import ServerChunks
    from innoscope.sampling.model import Frame


class _Table:
    """A table of ProfilesDictionary: each entry once, after the zero value, which has the index 0."""

    def __init__(self, zero: Any) -> None:
        self.entries: list[Any] = [zero]
        self._known: dict[Hashable, int] = {}

    def index(self, key: Hashable, entry: Any) -> int:
        """Return the index of the entry that ``key`` identifies. Add it if it is missing."""
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.entries)
            self.entries.append(entry)
        return found


class _Dictionary:
    """The tables of ProfilesDictionary."""

    def __init__(self) -> None:
        self._strings = _Table("")
        self._mappings, self._functions, self._locations = _Table({}), _Table({}), _Table({})
        self._stacks, self._attributes = _Table({}), _Table({})

    def string(self, text: str) -> int:
        """Return the index of a string."""
        return self._strings.index(text, text) if text else 0

    def stack(self, frames: list[Frame]) -> int:
        """Return the index of a stack. The frames are innermost first, as in the message."""
        indices = tuple(map(self._location, frames))
        return self._stacks.index(indices, {"locationIndices": indices})

    def attribute(self, key: str, value: str) -> int:
        """Return the index of an attribute."""
        entry = {"keyStrindex": self.string(key), "value": {"stringValue": value}}
        return self._attributes.index((key, value), entry)

    def document(self) -> dict[str, Any]:
        """Return the message."""
        return {
            "mappingTable": self._mappings.entries,
            "locationTable": self._locations.entries,
            "functionTable": self._functions.entries,
            "linkTable": [{}],
            "stringTable": self._strings.entries,
            "attributeTable": self._attributes.entries,
            "stackTable": self._stacks.entries,
        }

    def _location(self, frame: Frame) -> int:
        """Return the index of a frame. Its address is unknown here: a location is a module and a function."""
        name = sanitize.line(frame.label)
        function = self._functions.index(name, {"nameStrindex": self.string(name)})
        mapping = 0
        if frame.module:
            mapping = self._mappings.index(frame.module, {"filenameStrindex": self.string(frame.module)})
        entry = {"mappingIndex": mapping, "lines": [{"functionIndex": function}]}
        return self._locations.index((mapping, function), entry)


def profile(found: ServerChunks, resources: Mapping[str, Attributes]) -> OtlpPayload:
    """Return the request with one server's snapshots as one profile: the number of threads by stack."""
    whole = merged(found.chunks)
    stacks = report(found.target, whole)
    tables = _Dictionary()
    unit = stacks.unit.pprof
    encoded = [
        {
            "stackIndex": tables.stack(list(one.frames)),
            "attributeIndices": [
                tables.attribute(f"innoscope.{name}", value) for name, value in one.labels.items()
            ],
            "values": [str(one.count)],
        }
        for one in samples(stacks)
    ]
    document = {
        "sampleType": {"typeStrindex": tables.string(unit.name), "unitStrindex": tables.string(unit.unit)},
        "samples": encoded,
        "timeUnixNano": str(round(whole.start * 1000) * 1_000_000),
        "durationNano": str(round((whole.end - whole.start) * 1000) * 1_000_000),
    }
    scope = {"scope": SCOPE, "profiles": [document]}
    of = resource(found.server, resources)
    body = {"resourceProfiles": [{"resource": of, "scopeProfiles": [scope]}], "dictionary": tables.document()}
    return payload("profiles", 1, body)
