"""``web_flood_main.py KIND ADDRESS PORT SECONDS COUNT SOURCES…``: run many bad clients against an agent.

Print ``go`` when all clients have been started and, when they have ended, ``{outcome: count}`` as JSON.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import resource
import ssl
import sys
import time
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections import Counter

OUTCOMES: Counter[str] = Counter()
_GET = "GET {} HTTP/1.1\r\nHost: {}\r\n{}\r\n"
#: Share of the clients that must be connected before the seconds of the flood count, and the maximum seconds
#: until then. A busy host needs seconds for a thousand connections.
_CONNECTED, _CONNECT_S = 0.95, 30.0
#: The first bytes of a TLS handshake: a record that announces 512 bytes.
_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(505)


async def silent(reader: Reader, _writer: Writer, _number: int) -> str:
    """Send nothing, and wait for the agent to reply or close the connection."""
    return "ended" if await reader.read(1) == b"" else "answered"


async def dribble(reader: Reader, writer: Writer, _number: int) -> str:
    """Send a request, one byte per second."""
    return await _slowly(reader, writer, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 600)


async def handshake(reader: Reader, writer: Writer, _number: int) -> str:
    """Send a TLS handshake, one byte per second."""
    return await _slowly(reader, writer, _HELLO)


async def _slowly(reader: Reader, writer: Writer, what: bytes) -> str:
    for place in range(len(what)):
        writer.write(what[place : place + 1])
        await writer.drain()
        try:
            return "ended" if await asyncio.wait_for(reader.read(1), 1) == b"" else "answered"
        except TimeoutError:
            continue
    return "sent all"


async def unread(_reader: Reader, writer: Writer, _number: int) -> str:
    """Send requests and read no response."""
    while True:
        writer.write(_GET.format("/metrics", "localhost", "").encode())
        await writer.drain()
        await asyncio.sleep(0.05)


async def metrics(reader: Reader, writer: Writer, _number: int) -> str:
    """Scrape without a pause."""
    return await _request_repeatedly(reader, writer, "/metrics", "")


async def stacks(reader: Reader, writer: Writer, _number: int) -> str:
    """Request the most expensive page once."""
    return await _request(reader, writer, "/api/stacks?format=html", "Connection: close\r\n")


async def guess(reader: Reader, writer: Writer, number: int) -> str:
    """Send wrong passwords without a pause."""
    for attempt in itertools.count():
        account = base64.b64encode(f"ann:guess {number} {attempt}".encode()).decode()
        OUTCOMES[await _request(reader, writer, "/metrics", f"Authorization: Basic {account}\r\n")] += 1
    return "never"


async def _request_repeatedly(reader: Reader, writer: Writer, path: str, headers: str) -> str:
    while True:
        OUTCOMES[await _request(reader, writer, path, headers)] += 1


async def _request(reader: Reader, writer: Writer, path: str, headers: str) -> str:
    writer.write(_GET.format(path, "localhost", headers).encode())
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].split("\r\n")[0])
    await reader.readexactly(length)
    return head.split()[1] + (" retry-after" if "\r\nretry-after: " in head else "")


_KINDS = {one.__name__: one for one in (silent, dribble, handshake, unread, metrics, stacks, guess)}


async def _tls(address: str, port: int, source: str) -> str:
    """Complete TLS handshakes, one after another."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    while True:
        _, writer = await asyncio.open_connection(
            address, port, ssl=context, local_addr=(source, 0), ssl_handshake_timeout=5
        )
        OUTCOMES["handshake"] += 1
        writer.transport.abort()


async def _client(kind: str, address: str, port: int, source: str, number: int) -> None:
    try:
        if kind == "tls":
            OUTCOMES[await _tls(address, port, source)] += 1
            return
        reader, writer = await asyncio.open_connection(address, port, local_addr=(source, 0), limit=1 << 16)
        OUTCOMES["connected"] += 1
        try:
            OUTCOMES[await _KINDS[kind](reader, writer, number)] += 1
        finally:
            writer.transport.abort()
    except (OSError, asyncio.IncompleteReadError):
        OUTCOMES["ended"] += 1


async def _connected(count: float) -> None:
    deadline = time.monotonic() + _CONNECT_S
    while OUTCOMES["connected"] < count and time.monotonic() < deadline:
        await asyncio.sleep(0.05)


async def _flood(kind: str, address: str, port: int, seconds: float, count: int, sources: list[str]) -> None:
    clients = [
        asyncio.create_task(_client(kind, address, port, source, number))
        for number, source in zip(range(count), itertools.cycle(sources))
    ]
    await asyncio.sleep(0)
    print("go", flush=True)
    if kind != "tls":  # those count handshakes, and connect again and again
        await _connected(_CONNECTED * count)
    _, active = await asyncio.wait(clients, timeout=seconds)
    for client in active:
        client.cancel()
    OUTCOMES["still active"] += len(active)
    await asyncio.gather(*active, return_exceptions=True)


def main() -> None:
    kind, address, port, seconds, count, *sources = sys.argv[1:]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    began = time.monotonic()
    asyncio.run(_flood(kind, address, int(port), float(seconds), int(count), sources))
    print(json.dumps({**OUTCOMES, "seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
