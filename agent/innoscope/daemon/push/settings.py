"""The section ``[push]`` of the agent's configuration: where profiles go, how often, and as whom."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from urllib.parse import SplitResult

#: What each kind of receiver is, and where it takes profiles when the URL has no path.
PATHS: Final = {"pyroscope": "/ingest", "parca": "/api/profiles/writeraw"}
#: What Parca (Prometheus' label names) and Pyroscope both take.
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
#: Pyroscope's service names; a Parca ``__name__`` may have no other characters either.
_NAME: Final = re.compile(r"[a-zA-Z0-9_./-]+")
#: Labels that we give, or that the receivers keep for themselves.
_OURS: Final = ("server", "flavour", "version", "wait", "trust", "service_name", "__name__")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
#: Headers that have settings of their own (so that secrets stay out of this file), or that are ours to set.
_HEADERS_ELSEWHERE: Final = {
    "authorization": "bearer_token_file or basic_auth_file",
    "x-scope-orgid": "tenant",
    "content-type": "kind",
    "content-length": "nothing",
    "host": "url",
}
_LEAST_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Push:
    """Nothing is sent while ``url`` is None. Times are seconds."""

    url: str | None = None
    kind: str = "pyroscope"
    name: str = "mysqld"
    labels: dict[str, str] = field(default_factory=dict)
    interval_seconds: float = 60
    timeout_seconds: float = 10
    memory_bytes: int = 8_388_608
    tenant: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    bearer_token_file: str | None = None
    basic_auth_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that it names."""
        named = (self.bearer_token_file, self.basic_auth_file, self.ca_file, self.cert_file, self.key_file)
        return tuple(Path(file) for file in named if file is not None)

    @property
    def target(self) -> SplitResult:
        """The URL with the path that its kind of receiver has, unless it names one."""
        parts = urlsplit(self.url or "")
        return parts if parts.path.strip("/") else parts._replace(path=PATHS[self.kind])


def problems(push: Push) -> list[str]:
    """What is wrong with the values, in words; empty when nothing is."""
    found = _url_problems(push.url) if push.url is not None else []
    if push.kind not in PATHS:
        found.append(f"push.kind is one of {', '.join(PATHS)}, not {push.kind!r}")
    if not _NAME.fullmatch(push.name):
        found.append("push.name has letters, digits and _ . / - only")
    if not 10 <= push.interval_seconds <= 3600 or not 1 <= push.timeout_seconds <= 60:
        found.append("push.interval_seconds is between 10 and 3600, push.timeout_seconds between 1 and 60")
    if push.memory_bytes < _LEAST_BYTES:
        found.append(f"push.memory_bytes is at least {_LEAST_BYTES}")
    if push.bearer_token_file is not None and push.basic_auth_file is not None:
        found.append("push.bearer_token_file and push.basic_auth_file exclude each other")
    if (push.cert_file is None) != (push.key_file is None):
        found.append("push.cert_file and push.key_file belong together")
    return [*found, *_label_problems(push.labels), *_header_problems(push)]


def _url_problems(url: str) -> list[str]:
    try:
        parts = urlsplit(url)
        port_is_good = parts.port != 0
    except ValueError as error:
        return [f"push.url is no URL: {error}"]
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_good:
        return ["push.url is like https://pyroscope.example.net:4040"]
    if parts.username is not None or parts.password is not None:
        return ["push.url has a user or a password in it: put them into push.basic_auth_file"]
    if parts.query or parts.fragment or not url.isprintable() or " " in url:
        return ["push.url has no ?query, no #fragment and no spaces"]
    return []


def _label_problems(labels: dict[str, str]) -> list[str]:
    found = []
    for name, value in labels.items():
        if not _LABEL.fullmatch(name) or name in _OURS:
            found.append(f"push.labels: {name!r} is not a label name, or is given by the agent")
        if not value or not value.isprintable() or set(value) & set(",{}"):
            found.append(
                f"push.labels.{name} is empty, or has a character that Pyroscope cannot take: , {{ }}"
            )
    return found


def _header_problems(push: Push) -> list[str]:
    found = []
    for name, value in push.headers.items():
        instead = _HEADERS_ELSEWHERE.get(name.lower())
        if instead is not None:
            found.append(f"push.headers: {name} is set by {instead}")
        elif not _HEADER.fullmatch(name) or not _is_value(value):
            found.append(f"push.headers: {name!r} is not a header, or its value is not one line of ASCII")
    if push.tenant is not None and not (push.tenant and _is_value(push.tenant)):
        found.append("push.tenant is one line of ASCII")
    return found


def _is_value(text: str) -> bool:
    return text.isascii() and text.isprintable()
