"""Roles, which determine what a client may read.

A client's role depends on its user name and certificate; server.py assigns the role of unauthenticated
clients.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Role(IntEnum):
    """Roles. Each role includes the lower ones."""

    METRICS = 1  # metrics, the live page without stacks and findings, runbooks
    FINDINGS = 2  # findings, the list of incidents
    STACKS = 3  # stacks, sessions, incident files


#: The roles by their names in the web configuration file.
ROLES: Final = {role.name.lower(): role for role in Role}

_NOT_AUTHENTICATED: Final = (
    "stacks are only served to this host or to authenticated clients: "
    "set basic_auth_users or RequireAndVerifyClientCert in the web configuration file"
)


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of users and of client certificates, by name. Unlisted names have the role STACKS."""

    users: Mapping[str, Role] = field(default_factory=dict)
    certificates: Mapping[str, Role] = field(default_factory=dict)

    def of(self, user: str | None, names: Iterable[str]) -> Role:
        """Return an authenticated client's role: the lowest role of its user and its certificate's names."""
        found = [self.certificates[name] for name in names if name in self.certificates]
        if user is not None and user in self.users:
            found.append(self.users[user])
        return min(found, default=Role.STACKS)


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a request. ``name`` is its user or certificate name; "" if it is not authenticated."""

    role: Role
    name: str = ""

    def why_not(self, needed: Role) -> str | None:
        """Return why the client lacks the role ``needed``; None if it has that role or a higher one."""
        if self.role >= needed:
            return None
        if not self.name:
            return _NOT_AUTHENTICATED
        return (
            f"the role {self.role.name.lower()} does not include {needed.name.lower()}: see docs/security.md"
        )


def certificate_names(wire: object) -> tuple[str, ...]:
    """Return the names in a verified client certificate: the common name, then DNS names, emails and URIs.

    ``wire`` is the connection's socket. Without TLS or without a certificate, there are none.
    """
    read = getattr(wire, "getpeercert", None)
    certificate: dict[str, Any] | None = None
    if read is not None:
        with contextlib.suppress(
            ValueError, OSError
        ):  # the handshake is not complete, or the client has left
            certificate = read()
    if not certificate:
        return ()
    subject = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    more = [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "email", "URI")]
    return tuple(dict.fromkeys(str(name) for name in (*subject, *more)))
