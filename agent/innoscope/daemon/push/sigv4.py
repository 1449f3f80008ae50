"""Sign requests to S3 and compatible storage: AWS Signature Version 4.

"Authenticating Requests: Using the Authorization Header" in the API reference of Amazon S3 describes the
algorithm. This module implements only what uploads need: a single-chunk body and no query string.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
#: Headers that are signed, in addition to all whose names begin with ``x-amz-``.
_SIGNED: Final = ("host", "date", "range")


@dataclass(frozen=True, slots=True)
class AccessKey:
    """Credentials. ``token`` is the session token of temporary credentials; otherwise it is empty."""

    key_id: str
    secret: str
    token: str = ""

    @classmethod
    def parse(cls, text: str) -> AccessKey:
        """Parse ``KEY_ID:SECRET`` or ``KEY_ID:SECRET:TOKEN``. Raise ValueError if it is malformed."""
        parts = text.split(":")
        if len(parts) not in (2, 3) or not all(parts):
            raise ValueError("expected one line, KEY_ID:SECRET or KEY_ID:SECRET:TOKEN")
        return cls(*parts)


def canonical_path(path: str) -> str:
    """Return the path as S3 encodes it: everything except letters, digits and ``-._~/`` is escaped."""
    return quote(unquote(path), safe="/-._~")


def signed_headers(
    method: str, path: str, headers: Mapping[str, str], body: bytes, key: AccessKey, region: str, at: float
) -> dict[str, str]:
    """Return the headers of a request with the signature.

    ``path`` is canonical; ``headers`` must contain ``host``; ``at`` is the Unix time.
    """
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
    digest = hashlib.sha256(body).hexdigest()
    found = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    found |= {"x-amz-date": moment, "x-amz-content-sha256": digest}
    if key.token:
        found["x-amz-security-token"] = key.token
    names = sorted(name for name in found if name in _SIGNED or name.startswith("x-amz-"))
    lines = "".join(f"{name}:{found[name]}\n" for name in names)
    canonical = "\n".join((method, path, "", lines, ";".join(names), digest))
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    to_sign = "\n".join((_ALGORITHM, moment, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    signing_key = reduce(_hmac, scope.split("/"), f"AWS4{key.secret}".encode())
    signature = _hmac(signing_key, to_sign).hex()
    authorization = (
        f"{_ALGORITHM} Credential={key.key_id}/{scope},SignedHeaders={';'.join(names)},Signature={signature}"
    )
    return {**found, "Authorization": authorization}


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
