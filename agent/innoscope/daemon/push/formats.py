"""What the receivers want to be told: path, query, headers and body of one profile.

Pyroscope: ``POST /ingest`` with the profile as it is (its reference of the server API, ``format=pprof``); it
makes a series of each value of a sample label. Parca: ``POST /profiles/writeraw``, the JSON gateway of
``parca.profilestore.v1alpha1.ProfileStoreService`` (proto/parca/profilestore/v1alpha1/profilestore.proto).
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from innoscope.common import sanitize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.daemon.push.queue import Entry
    from innoscope.daemon.push.settings import Push

#: What ends a label's value in Pyroscope's ``name{label=value,…}``, which knows no quotes.
_ENDS_A_VALUE: Final = str.maketrans(",{}", "___")


@dataclass(frozen=True, slots=True)
class Posted:
    """What is put into an HTTP request."""

    target: str  # path and query
    content_type: str
    body: bytes


def posted(entry: Entry, push: Push, instance: str, more: Mapping[str, str] | None = None) -> Posted:
    """The request for one profile; ``more`` are labels of this one only."""
    told = {"server": entry.server, "flavour": entry.flavour, "version": entry.version, "instance": instance}
    labels = {name: value for name, value in (told | push.labels | dict(more or {})).items() if value}
    make = {"pyroscope": _pyroscope, "parca": _parca}[push.kind]
    return make(entry, push, labels)


def _pyroscope(entry: Entry, push: Push, labels: Mapping[str, str]) -> Posted:
    pairs = (f"{name}={value.translate(_ENDS_A_VALUE)}" for name, value in labels.items())
    query = {
        "name": f"{push.name}{{{','.join(pairs)}}}",
        "from": int(entry.start),
        "until": max(math.ceil(entry.end), int(entry.start) + 1),
        "format": "pprof",
        "spyName": "innoscope",
    }
    return Posted(f"{push.target.path}?{urlencode(query)}", "application/octet-stream", entry.pprof)


def _parca(entry: Entry, push: Push, labels: Mapping[str, str]) -> Posted:
    named = {"__name__": push.name, **labels}
    series = {
        "labels": {"labels": [{"name": name, "value": value} for name, value in named.items()]},
        "samples": [{"raw_profile": base64.b64encode(entry.pprof).decode("ascii")}],
    }
    body = sanitize.dumps({"series": [series], "normalized": True}).encode()
    return Posted(push.target.path, "application/json", body)
