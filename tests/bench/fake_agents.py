"""Serve many fake agents: ``python -m bench.fake_agents FILE``. Each URL path is an agent.

FILE is a JSON list of recorded ``/metrics`` bodies. Each agent serves these bodies in a loop, so Prometheus
also has to handle counter resets.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

from bench.helper_process import next_command, reply

_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Farm:
    """A server that responds to the GET requests for all fake agents."""

    def __init__(self, bodies: list[str]) -> None:
        self._answers = [_reply(body.encode()) for body in bodies]
        self._asked: Counter[bytes] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which stays open between scrapes."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1]
                # agents start at different positions in the recording
                place = self._asked[path] + hash(path)
                self._asked[path] += 1
                writer.write(self._answers[place % len(self._answers)])
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def _reply(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (_TYPE, len(body))
    return head + body


async def _main(bodies: list[str]) -> None:
    server = await asyncio.start_server(Farm(bodies).serve, "127.0.0.1", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    reply("ready")
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, next_command, None) is not None:
        reply(port)


if __name__ == "__main__":
    asyncio.run(_main(json.loads(Path(sys.argv[1]).read_text())))
