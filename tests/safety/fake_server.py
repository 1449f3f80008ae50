"""A fake server that greets with one authentication plugin, requests another, and prints what it receives."""

from __future__ import annotations

import argparse
import json
import socket
import ssl
import struct
from pathlib import Path

PLUGINS = (
    "mysql_native_password", "caching_sha2_password", "sha256_password", "mysql_clear_password", "dialog",
    "client_ed25519", "mysql_old_password", "auth_unknown",
)  # fmt: skip
NONCE = b"ABCDEFGHIJKLMNOPQRST"
#: CLIENT_PROTOCOL_41, SECURE_CONNECTION, PLUGIN_AUTH, CONNECT_WITH_DB and others; SSL is 1 << 11.
_CAPABILITIES = 0x000F_F7FF | 1 << 19
_LONGEST_S = 3
#: Forms of a greeting: announced length of the nonce, rest of the nonce, and the last bytes.
FORMS = {
    "as it should be": (21, NONCE[8:], b"\0"),
    "without an end": (21, NONCE[8:], b""),
    "with a long nonce": (255, b"x" * 246, b"\0"),
    "with an old server's length": (0, NONCE[8:], b"\0"),
    # PyMySQL and a parser that relies on the announced length extract different plugins from these forms.
    "with a nonce much shorter than announced": (255, b"", b"\0"),
    "with a nonce shorter than announced": (40, NONCE[8:], b"\0"),
    "without the rest of the nonce": (21, b"", b"\0"),
    "with bytes after the plugin": (255, b"", b"\0" + b"x" * 100),
    "with a plugin that is not ASCII": (21, NONCE[8:], b"\xff\0"),
    "without a version": (21, NONCE[8:], b"\0"),
}


def packet(number: int, body: bytes) -> bytes:
    """Add the header of a packet to its content."""
    return struct.pack("<I", len(body))[:3] + bytes([number & 255]) + body


def greeting(plugin: str, form: str = "as it should be", *, tls: bool = False) -> bytes:
    """Build a Protocol::HandshakeV10 in one of ``FORMS``."""
    length, nonce, end = FORMS[form]
    low, high = (_CAPABILITIES | tls << 11) & 0xFFFF, _CAPABILITIES >> 16
    version = b"" if form == "without a version" else b"8.0.30"
    begin = b"\x0a" + version + b"\0" + struct.pack("<I", 7) + NONCE[:8] + b"\0" + struct.pack("<H", low)
    middle = b"\x21" + struct.pack("<HH", 2, high) + bytes([length]) + b"\0" * 10
    return begin + middle + nonce + b"\0" + plugin.encode() + end


def public_key() -> bytes:
    """Return a public key with which a client could encrypt a password."""
    return Path(__file__).with_name("fake_server.pem").read_bytes()


def encrypted(connection: socket.socket, form: str, first: str, certificate: str) -> bytes:
    """Send a greeting in ``form``, use TLS if the client does, and return the received bytes."""
    connection.settimeout(_LONGEST_S)
    got = b""
    try:
        connection.sendall(packet(0, greeting(first, form, tls=True)))
        got += connection.recv(36)
        if got:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            got += context.wrap_socket(connection, server_side=True).recv(4096)
    except OSError:
        pass
    return got


def serve(connection: socket.socket, first: str, asked: str) -> bytes:
    """Greet with plugin ``first``, then request ``asked`` in all packet forms. Return the received bytes."""
    connection.settimeout(_LONGEST_S)
    got = b""
    try:
        connection.sendall(packet(0, greeting(first)))
        answer = connection.recv(4096)
        got += answer
        if asked != first:
            connection.sendall(packet(answer[3] + 1, b"\xfe" + asked.encode() + b"\0" + NONCE + b"\0"))
            answer = connection.recv(4096)
            got += answer
        more = {
            "caching_sha2_password": b"\x01\x04",
            "sha256_password": b"\x01" + public_key(),
            "dialog": b"\x04Password: ",
            "mysql_old_password": b"\xfe",
        }
        for words in (more.get(asked, b"\x01\x04"), b"\x01" + public_key(), b"\xfe"):
            if not answer:
                break
            connection.sendall(packet(answer[3] + 1, words))
            answer = connection.recv(4096)
            got += answer
    except OSError:
        pass
    return got


def stream(connection: socket.socket, what: str) -> None:
    """Accept every login. Reply to queries with endless rows or columns, and to other statements with OK."""
    connection.sendall(packet(0, greeting("mysql_native_password")))
    connection.recv(4096)
    okay = b"\0\0\0\2\0\0\0"
    connection.sendall(packet(2, okay))
    while statement := connection.recv(4096):
        if what == "columns" and b"SHOW" in statement:
            connection.sendall(packet(1, b"\xfd\xff\xff\xff"))
            _for_ever(connection, 2, b"\x03def\0\0\0\1a\1a\x0c\x21\0\xff\0\0\0\xfd\0\0\0\0\0")
        elif b"SHOW" in statement or b"SELECT" in statement:
            long = b"\xfc\x60\xea" + b"x" * 60_000 + b"\xfb"
            pair = b"\2ab\2cd"
            cells = {"rows": pair, "slow": pair, "nulls": b"\xfb\xfb", "long": long}
            column = b"\x03def\0\0\0\1a\1a\x0c\x21\0\xff\0\0\0\xfd\0\0\0\0\0"
            head = packet(1, b"\2") + packet(2, column) + packet(3, column) + packet(4, b"\xfe\0\0\2\0")
            connection.sendall(head)
            _for_ever(connection, 5, cells[what], slowly=what == "slow")
        else:
            connection.sendall(packet(1, okay))


def _for_ever(connection: socket.socket, number: int, body: bytes, *, slowly: bool = False) -> None:
    if slowly:
        connection.settimeout(0.1)
    while True:
        many = 1 if slowly or len(body) > 1000 else 2560
        connection.sendall(b"".join(packet(number + one, body) for one in range(many)))
        number += many
        if slowly:
            try:
                connection.recv(1)
                return
            except TimeoutError:
                continue


def main() -> None:
    """Listen on the given socket or port. For each connection, print the received bytes as a line of JSON."""
    options = argparse.ArgumentParser()
    options.add_argument("--socket")
    options.add_argument("--port", type=int)
    options.add_argument("--first", default=PLUGINS[0])
    options.add_argument("--asked", default=PLUGINS[0])
    options.add_argument("--stream")
    options.add_argument("--form", default="as it should be", choices=FORMS)
    options.add_argument("--certificate", help="Speak TLS with this, and read one packet.")
    chosen = options.parse_args()
    listener = socket.socket(socket.AF_UNIX if chosen.socket else socket.AF_INET)
    listener.bind(chosen.socket or ("0.0.0.0", chosen.port))  # noqa: S104
    if chosen.socket:
        Path(chosen.socket).chmod(0o777)
    listener.listen()
    print("ready", listener.getsockname()[1] if chosen.port is not None else 0, flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            if chosen.stream:
                try:
                    stream(connection, chosen.stream)
                except OSError:
                    continue
            else:
                got = (
                    encrypted(connection, chosen.form, chosen.first, chosen.certificate)
                    if chosen.certificate
                    else serve(connection, chosen.first, chosen.asked)
                )
                print(json.dumps(got.hex()), flush=True)


if __name__ == "__main__":
    main()
