"""Build the request for one profile in the receiver's format: path, query, content type and body.

Pyroscope: ``POST /ingest`` with the pprof file as the body (``format=pprof`` in its server API reference).
Pyroscope creates a series for each value of a sample label.

Parca: ``POST /profiles/writeraw``, the JSON gateway of ``parca.profilestore.v1alpha1.ProfileStoreService``
(proto/parca/profilestore/v1alpha1/profilestore.proto).
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

    from innoscope.daemon.push.queue import QueuedProfile
    from innoscope.daemon.push.settings import Push

#: Characters that end a label's value in Pyroscope's ``name{label=value,…}``, where values cannot be quoted.
_VALUE_ENDS: Final = str.maketrans(",{}", "___")


@dataclass(frozen=True, slots=True)
class PushRequest:
    """The parts of an HTTP request to a receiver of profiles, OTLP, notifications or incident files."""

    target: str  # path and query
    content_type: str
    body: bytes
    method: str = "POST"


def push_request(
    entry: QueuedProfile, push: Push, instance: str, more: Mapping[str, str] | None = None
) -> PushRequest:
    """Return the request for one profile; ``more`` contains additional labels."""
    own = {"server": entry.server, "flavour": entry.flavour, "version": entry.version, "instance": instance}
    labels = {name: value for name, value in (own | push.labels | dict(more or {})).items() if value}
    build = {"pyroscope": _pyroscope, "parca": _parca}[push.kind]
    return build(entry, push, labels)


def _pyroscope(entry: QueuedProfile, push: Push, labels: Mapping[str, str]) -> PushRequest:
    pairs = (f"{name}={value.translate(_VALUE_ENDS)}" for name, value in labels.items())
    query = {
        "name": f"{push.name}{{{','.join(pairs)}}}",
        "from": int(entry.start),
        "until": max(math.ceil(entry.end), int(entry.start) + 1),
        "format": "pprof",
        "spyName": "innoscope",
    }
    return PushRequest(f"{push.target.path}?{urlencode(query)}", "application/octet-stream", entry.pprof)


def _parca(entry: QueuedProfile, push: Push, labels: Mapping[str, str]) -> PushRequest:
    named = {"__name__": push.name, **labels}
    series = {
        "labels": {"labels": [{"name": name, "value": value} for name, value in named.items()]},
        "samples": [{"raw_profile": base64.b64encode(entry.pprof).decode("ascii")}],
    }
    body = sanitize.dumps({"series": [series], "normalized": True}).encode()
    return PushRequest(push.target.path, "application/json", body)
