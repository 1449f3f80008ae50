"""Build the request that uploads an incident file, and sign it if the receiver is S3."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from innoscope.daemon.push.client import HttpSender, read_secret
from innoscope.daemon.push.errors import PushFailed
from innoscope.daemon.push.formats import PushRequest
from innoscope.daemon.push.sigv4 import AccessKey, canonical_path, signed_headers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.daemon.push.settings import Upload


def request(upload: Upload, host: str, file: str, body: bytes) -> PushRequest:
    """Return the request that stores an incident file as ``URL/HOST/FILE``."""
    path = f"{upload.target.path.rstrip('/')}/{quote(host, safe='')}/{quote(file, safe='')}"
    return PushRequest(canonical_path(path), "application/gzip", body, method="PUT")


def sender(upload: Upload) -> HttpSender:
    """Return a sender for the requests that ``request`` builds."""
    sign = Signer(upload).sign if upload.kind == "s3" else None
    return HttpSender(upload, "upload", "the incident file", sign=sign)


class Signer:
    """Signs requests with the access key, which is read from its file for each request."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload

    def sign(self, request: PushRequest) -> tuple[Mapping[str, str], tuple[str, ...]]:
        """Return the headers to send, and the secrets. Raise PushFailed if the access key is unusable."""
        file = self._upload.access_key_file or ""
        try:
            key = AccessKey.parse(read_secret(file))
        except ValueError as error:
            raise PushFailed("file", f"cannot use {file}: {error}", remedy=f"ls -l {file}") from error
        headers = {**self._upload.headers, "host": self._host()}
        signed = signed_headers(
            request.method, request.target, headers, request.body, key, self._upload.region, time.time()
        )
        configured = {name.lower() for name in self._upload.headers}  # the sender adds them unchanged
        added = {name: value for name, value in signed.items() if name not in configured}
        return added, tuple(one for one in (key.secret, key.token) if one)

    def _host(self) -> str:
        """Return the value of the Host header, which is signed. Like HTTP clients, omit the default port."""
        target = self._upload.target
        default = 443 if target.scheme == "https" else 80
        name = target.hostname or ""
        name = f"[{name}]" if ":" in name else name
        return name if target.port in (None, default) else f"{name}:{target.port}"
