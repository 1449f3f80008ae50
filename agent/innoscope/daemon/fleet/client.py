"""Request the incident files of one agent, within limits on time and bytes."""

from __future__ import annotations

import base64
import http.client
import math
import socket
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final
from urllib.parse import quote

import msgspec
from msgspec import Meta

from innoscope import __version__
from innoscope.common import sanitize
from innoscope.common.errors import BadFile, ExitCode, InnoscopeError
from innoscope.common.typed import decode_json
from innoscope.daemon.push.client import retry_after, secret
from innoscope.daemon.push.connection import Deadline, HttpConnection
from innoscope.diagnose.incident.files import MAX_FILE_BYTES
from innoscope.diagnose.watch.folder import is_incident_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from innoscope.daemon.fleet.agents import AgentAddress

#: Maximum size in bytes of an agent's list of incidents, and maximum number of its entries that are used.
_MAX_LIST_BYTES: Final = 1 << 20
_MAX_ROWS: Final = 1_000
_CHUNK: Final = 65_536
#: Maximum number of characters of an error response that are shown.
_MAX_SHOWN: Final = 200
#: Maximum number of requests to a busy agent (429, 503), and maximum pause between them in seconds.
_ATTEMPTS: Final = 3
_MAX_PAUSE_S: Final = 3.0
_BUSY: Final = (429, 503)
_PATH: Final = "/api/incidents"

_Text = Annotated[str, Meta(max_length=2_000)]


class AgentFailed(InnoscopeError):
    """An agent did not answer as expected."""

    exit_code = ExitCode.AGENT_FAILED


class IncidentRow(msgspec.Struct, frozen=True):
    """An entry of an agent's list of incidents. Later versions may add keys."""

    file: _Text
    at: float
    bytes: int
    server: _Text | None = None
    trigger: _Text | None = None
    finding: _Text | None = None
    title: _Text | None = None
    score: float | None = None
    blocker: _Text | None = None


class _List(msgspec.Struct, frozen=True):
    incidents: list[IncidentRow]


@dataclass(frozen=True, slots=True)
class CredentialFiles:
    """Files with credentials: one line with ``user:password``, a CA, a client certificate and its key."""

    basic_auth_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def authorization(self) -> str | None:
        """Return the Authorization header; None without a file. Raise BadFile if the file cannot be used."""
        if self.basic_auth_file is None:
            return None
        try:
            pair = secret(self.basic_auth_file)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "expected one line, user:password"
            file = self.basic_auth_file
            raise BadFile(f"cannot use {file}: {why}", remedy=f"ls -l {file}") from error
        return f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context. Raise BadFile if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as error:
            files = ", ".join(str(file) for file in (self.ca_file, self.cert_file, self.key_file) if file)
            why = error.strerror or error
            raise BadFile(
                f"cannot use {files}: {why}", remedy="openssl x509 -noout -text -in FILE"
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


class AgentClient:
    """Sends requests to agents. Thread-safe. ``timeout_s`` limits each request, including the response."""

    def __init__(self, credentials: CredentialFiles, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._tls = credentials.tls()
        authorization = credentials.authorization()
        self._headers = {"User-Agent": f"innoscope/{__version__}", "Connection": "close"}
        if authorization is not None:
            self._headers["Authorization"] = authorization

    def incidents(self, agent: AgentAddress) -> list[IncidentRow]:
        """Return the first ``_MAX_ROWS`` valid entries of an agent's list of incidents, in its order.

        Raise AgentFailed if the request fails or the response is not a valid list.
        """
        body = b"".join(self._get(agent, _PATH, _MAX_LIST_BYTES))
        try:
            rows = decode_json(body, _List, agent.url).incidents
        except BadFile as error:
            raise AgentFailed(
                f"{agent.url} did not return a list of incidents", remedy=f"curl {agent.url}{_PATH}"
            ) from error
        return [row for row in rows if _is_valid(row)][:_MAX_ROWS]

    def download(self, agent: AgentAddress, row: IncidentRow, sink: BinaryIO) -> int:
        """Write an incident file to ``sink``, and return its size.

        Raise AgentFailed if the request fails, or if the file is larger than the agent's list claims or than
        MAX_FILE_BYTES.
        """
        size, most = 0, min(row.bytes, MAX_FILE_BYTES)
        for chunk in self._get(agent, f"{_PATH}?file={quote(row.file, safe='')}", most):
            sink.write(chunk)
            size += len(chunk)
        return size

    def _get(self, agent: AgentAddress, path: str, most: int) -> Iterator[bytes]:
        """Yield the body of a response.

        Raise AgentFailed if the request fails or the body exceeds ``most`` bytes.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            with Deadline(self._timeout_s) as deadline:
                tls = self._tls if agent.scheme == "https" else None
                connection = HttpConnection(agent.host, agent.port, deadline, tls)
                try:
                    connection.request("GET", path, headers=self._headers)
                    response = connection.getresponse()
                    if response.status == 200:
                        yield from self._body(agent, response, most)
                        return
                    words = sanitize.words(response.read(_CHUNK).decode("utf-8", "replace"), _MAX_SHOWN)
                    pause_s = retry_after(response.headers.get("Retry-After"), time.time())
                except (OSError, http.client.HTTPException, ValueError) as error:
                    raise self._failed(agent, error, expired=deadline.expired) from error
                finally:
                    connection.close()
            if response.status not in _BUSY or attempt == _ATTEMPTS:
                raise _refused(agent, response.status, words)
            time.sleep(min(pause_s, _MAX_PAUSE_S))

    def _body(self, agent: AgentAddress, response: http.client.HTTPResponse, most: int) -> Iterator[bytes]:
        size = 0
        while chunk := response.read(_CHUNK):
            size += len(chunk)
            if size > most:
                what = f"{agent.url} sent more than {most:,} bytes"
                raise AgentFailed(what, remedy="check that an agent of Innoscope listens there")
            yield chunk
        if response.length:
            raise http.client.IncompleteRead(b"")

    def _failed(self, agent: AgentAddress, error: Exception, *, expired: bool) -> AgentFailed:
        where = agent.url
        if expired or isinstance(error, TimeoutError):
            return AgentFailed(f"{where} did not answer within {self._timeout_s:g} s", remedy="--timeout 60s")
        if isinstance(error, ssl.SSLError):
            words = getattr(error, "verify_message", "") or error.reason or str(error)
            remedy = "--ca-file FILE if a private CA issued the certificate; --scheme http without TLS"
            return AgentFailed(f"TLS with {where} failed: {words}", remedy=remedy)
        if isinstance(error, socket.gaierror):
            what = f"cannot resolve {agent.host}: {error.strerror}"
            return AgentFailed(what, remedy=f"getent hosts {agent.host}")
        if isinstance(error, OSError):
            what = f"cannot connect to {where}: {error.strerror or error}"
            return AgentFailed(what, remedy=f"on {agent.host}: systemctl status innoscope-agent")
        what = f"{where} sent an invalid HTTP response: {type(error).__name__}"
        return AgentFailed(what, remedy="--scheme https if the agent uses TLS")


def _refused(agent: AgentAddress, status: int, words: str) -> AgentFailed:
    what = f"{agent.url} answered {status}" + (f": {words}" if words else "")
    remedies = {
        401: "--basic-auth-file FILE, or --cert-file and --key-file",
        403: "the agent serves incident files only to clients that authenticate: docs/security.md",
        404: f"list the agent's files again: innoscope incidents list --agent {agent.url}",
    }
    return AgentFailed(what, remedy=remedies.get(status, "see the agent's log"))


def _is_valid(row: IncidentRow) -> bool:
    numbers_are_valid = math.isfinite(row.at) and 0 <= row.at < 1e11 and row.bytes >= 0
    return is_incident_name(row.file) and numbers_are_valid
