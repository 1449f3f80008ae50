"""Pretends to be many agents: ``python -m bench.farm FILE``. Each path is one, with recorded answers.

FILE is JSON, a list of bodies of ``/metrics``. After the last one counters fall back: resets to a Prometheus.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

from bench.children import answer, told

_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Farm:
    """Answers any GET, on as many connections as there are agents."""

    def __init__(self, bodies: list[str]) -> None:
        self._answers = [_answer(body.encode()) for body in bodies]
        self._asked: Counter[bytes] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, kept open between scrapes."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1]
                # not all at the same place of the recording
                place = self._asked[path] + hash(path)
                self._asked[path] += 1
                writer.write(self._answers[place % len(self._answers)])
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def _answer(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (_TYPE, len(body))
    return head + body


async def _main(bodies: list[str]) -> None:
    server = await asyncio.start_server(Farm(bodies).serve, "127.0.0.1", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    answer("ready")
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, told, None) is not None:
        answer(port)


if __name__ == "__main__":
    asyncio.run(_main(json.loads(Path(sys.argv[1]).read_text())))
