"""The sections of agent.toml that name receivers and their credentials: push, otlp, notify and upload."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

from msgspec import Meta, field

from innoscope.common.schema import Entry

if TYPE_CHECKING:
    from urllib.parse import SplitResult

#: Kinds of receivers, each with the path that is used if the URL has none.
PATHS: Final = {"pyroscope": "/ingest", "parca": "/api/profiles/writeraw"}
#: Formats of notifications: the webhooks of Alertmanager and of Slack.
NOTIFICATIONS: Final = ("alertmanager", "slack")
#: Kinds of stores for incident files: S3 and compatible storage, or any server that accepts PUT requests.
STORES: Final = ("s3", "http")
#: Label names that both receivers accept. Parca applies the rules of Prometheus.
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
#: Labels that cannot be configured, because Innoscope sets them or the receivers reserve them.
_OURS: Final = ("server", "flavour", "version", "wait", "trust", "service_name", "__name__")
#: Name of a resource attribute, as in OpenTelemetry's semantic conventions.
_ATTRIBUTE: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
#: Resource attributes that cannot be configured in ``attributes``, because the agent sets them.
OTLP_OURS: Final = (
    "service.name", "service.version", "db.system.name", "server.address", "server.port", "innoscope.server",
)  # fmt: skip
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
#: Headers that ``headers`` must not contain, and what determines each of them instead.
_HEADERS_ELSEWHERE: Final = {
    "authorization": "bearer_token_file or basic_auth_file",
    "content-type": "kind",
    "content-encoding": "the agent",
    "content-length": "the agent",
    "host": "url",
}


class Receiver(Entry, frozen=True):
    """Settings for requests to an HTTP server. Nothing is sent if ``url`` is None."""

    url: str | None = None
    timeout_seconds: Annotated[float, Meta(ge=1, le=60)] = 10
    headers: dict[str, str] = field(default_factory=dict)
    bearer_token_file: str | None = None
    basic_auth_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def __post_init__(self) -> None:
        if self.url is not None:
            _check_url(self.url)
        if self.bearer_token_file is not None and self.basic_auth_file is not None:
            raise ValueError("bearer_token_file and basic_auth_file are mutually exclusive")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file must be set together")
        _check_headers(self.headers)

    @property
    def files(self) -> tuple[Path, ...]:
        """Return all files that the settings refer to."""
        named = (self.bearer_token_file, self.basic_auth_file, self.ca_file, self.cert_file, self.key_file)
        return tuple(Path(file) for file in named if file is not None)

    @property
    def target(self) -> SplitResult:
        """Return the parts of the URL."""
        return urlsplit(self.url or "")


class Push(Receiver, frozen=True):
    """The section ``[push]``: the receiver of profiles."""

    kind: Annotated[str, Meta(pattern=rf"\A({'|'.join(PATHS)})\Z")] = "pyroscope"
    #: The service name in Pyroscope, and ``__name__`` in Parca. Pyroscope allows only these characters.
    name: Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9_./-]+\Z")] = "mysqld"
    labels: dict[str, str] = field(default_factory=dict)
    interval_seconds: Annotated[float, Meta(ge=10, le=3600)] = 60
    memory_bytes: Annotated[int, Meta(ge=65_536)] = 8_388_608
    tenant: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tenant is not None and not (self.tenant and _is_value(self.tenant)):
            raise ValueError("tenant must be one line of ASCII")
        for name in self.headers:
            if name.lower() == "x-scope-orgid":
                raise ValueError(f"headers: {name} is set by tenant")
        _check_labels(self.labels)

    @property
    def target(self) -> SplitResult:
        """Return the parts of the URL. If it has no path, add the default path for the kind of receiver."""
        parts = super().target
        return parts if parts.path.strip("/") else parts._replace(path=PATHS[self.kind])


class Otlp(Receiver, frozen=True):
    """The section ``[otlp]``: an OpenTelemetry Collector, or another receiver of OTLP/HTTP.

    ``url`` is the base URL, to which the path of each signal is added. ``attributes`` are added to all
    resources.
    """

    metrics: bool = True
    logs: bool = True
    #: Experimental: the signal is in development.
    profiles: bool = False
    name: Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9_./-]+\Z")] = "innoscope"
    attributes: dict[str, str] = field(default_factory=dict)
    interval_seconds: Annotated[float, Meta(ge=10, le=3600)] = 60
    memory_bytes: Annotated[int, Meta(ge=65_536)] = 8_388_608

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.attributes.items():
            if not _ATTRIBUTE.fullmatch(name) or name in OTLP_OURS:
                raise ValueError(f"attributes: {name!r} is not a valid name, or is set by the agent")
            if not value or not value.isprintable():
                raise ValueError(f"attributes: the value of {name} is empty or not printable")


class Notify(Receiver, frozen=True):
    """The section ``[notify]``: the webhook to which the agent reports incidents."""

    format: Annotated[str, Meta(pattern=rf"\A({'|'.join(NOTIFICATIONS)})\Z")] = "alertmanager"
    #: The agent's address in links; by default, http(s)://HOSTNAME:PORT.
    page_url: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.page_url is not None:
            _check_url(self.page_url)


class Upload(Receiver, frozen=True):
    """The section ``[upload]``: where the agent stores copies of incident files, as ``URL/HOST/FILE``."""

    kind: Annotated[str, Meta(pattern=rf"\A({'|'.join(STORES)})\Z")] = "s3"
    region: Annotated[str, Meta(pattern=r"\A[a-z0-9-]+\Z")] = "us-east-1"
    #: File with one line: KEY_ID:SECRET or KEY_ID:SECRET:SESSION_TOKEN.
    access_key_file: str | None = None
    timeout_seconds: Annotated[float, Meta(ge=1, le=300)] = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        others = self.bearer_token_file is not None or self.basic_auth_file is not None
        if self.kind == "s3" and others:
            raise ValueError('bearer_token_file and basic_auth_file need kind = "http"')
        if self.url is not None and (self.kind == "s3") != (self.access_key_file is not None):
            raise ValueError('kind = "s3" needs access_key_file, and vice versa')

    @property
    def files(self) -> tuple[Path, ...]:
        """Return all files that the settings refer to."""
        key = (Path(self.access_key_file),) if self.access_key_file is not None else ()
        return (*super().files, *key)


def _check_url(url: str) -> None:
    """Raise ValueError if the URL is malformed, or has parts that are not allowed."""
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port != 0
    except ValueError as error:
        raise ValueError(f"malformed url: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_valid:
        raise ValueError("malformed url: expected, for example, https://pyroscope.example.net:4040")
    if parts.username is not None or parts.password is not None:
        raise ValueError("url must not contain a user or a password: use basic_auth_file")
    if parts.query or parts.fragment or not url.isprintable() or " " in url:
        raise ValueError("url must not contain a query, a fragment or spaces")


def _check_labels(labels: dict[str, str]) -> None:
    for name, value in labels.items():
        if not _LABEL.fullmatch(name) or name in _OURS:
            raise ValueError(f"labels: {name!r} is not a valid label name, or is set by the agent")
        if not value or not value.isprintable() or set(value) & set(",{}"):
            raise ValueError(
                f"labels.{name} is empty, or contains a character that Pyroscope rejects: , {{ }}"
            )


def _check_headers(headers: dict[str, str]) -> None:
    for name, value in headers.items():
        instead = _HEADERS_ELSEWHERE.get(name.lower())
        if instead is not None:
            raise ValueError(f"headers: {name} is set by {instead}")
        if not _HEADER.fullmatch(name) or not _is_value(value):
            raise ValueError(
                f"headers: {name!r} is not a valid header name, or its value is not one line of ASCII"
            )


def _is_value(text: str) -> bool:
    return text.isascii() and text.isprintable()
