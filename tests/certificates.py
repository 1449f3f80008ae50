"""Create self-signed certificates for 127.0.0.1, valid for two days, for tests of TLS."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def self_signed(folder: Path, name: str = "") -> None:
    """Create ``cert.pem`` and ``key.pem`` in ``folder``; ``name`` is a prefix of both file names."""
    key, cert = folder / f"{name}key.pem", folder / f"{name}cert.pem"
    kind = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    files = [
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(cert),
    ]
    subprocess.run([*kind, *files], check=True, capture_output=True, timeout=60)
    key.chmod(0o644)  # servers and agents that drop privileges must read it
