"""A hostile server's large results do not displace other servers' results in the reply to ``collect``."""

from __future__ import annotations

import json
from typing import Final

import pytest

from innoscope.common.json_size import text_bytes
from innoscope.common.samples import Histogram, Outcome, Sample
from innoscope.daemon.protocol import messages
from unit.snapshots import target

#: A character with the longest escape sequence in JSON: two surrogates, in 12 bytes.
ASTRAL: Final = "\U0001f40d"


@pytest.mark.parametrize("text", ["", "plain", 'quotes "\\"', "\x01\n\x7f", "é", "\udcff", ASTRAL])
def test_the_estimate_is_never_too_small(text: str) -> None:
    assert len(json.dumps(text)) - len('""') <= text_bytes(text)


def outcomes(prefix: str, series: int) -> tuple[Outcome, ...]:
    counters = tuple(Sample("rows", number, (f"{prefix} {number}",)) for number in range(series))
    histogram = Sample("wait_seconds", Histogram((1,) * 64, 1), ("redo",))
    return (
        Outcome("process", True, 0.1, (Sample("mysqld_up", 1),)),
        Outcome("memory", True, 0.1, counters, past=counters),
        Outcome("probes", True, 0.1, (histogram,)),
    )


def collected(*servers: messages.ServerReply) -> dict[str, messages.ServerReply]:
    """Return the servers in a reply to ``collect``, by name, as the agent decodes them."""
    own = {"boot_id": "b", "pid": 7, "cpu_seconds": 1, "rss_bytes": 4096, "version": "0.1.0", "sent_at": 1.5}
    text = json.dumps({"ok": own | messages.encode_servers(servers)})
    assert len(text) <= messages.REPLY_BYTES
    return {one.name: one for one in messages.decode_reply(json.loads(text)["ok"]).servers}


def test_results_that_are_too_large_do_not_displace_those_of_other_servers() -> None:
    hostile = [
        messages.ServerReply(f"hostile {number}", target(), outcomes(ASTRAL * 100 + str(number), 1_500))
        for number in range(12)
    ]
    real = messages.ServerReply("real", target(), outcomes("a", 1_000))
    found = collected(*hostile, real)
    assert found["real"] == real
    process, memory, probes = found["hostile 3"].outcomes
    assert (process, probes) == (hostile[3].outcomes[0], hostile[3].outcomes[2])
    assert (memory.success, memory.samples, memory.past) == (False, (), ())
    assert memory.reason is not None
    assert memory.reason.startswith("error: the results of all collectors take more than ")


def test_long_paths_of_many_servers_fit_into_a_reply() -> None:
    """Use the longest paths that discovery accepts, which consist of bytes that are not valid UTF-8."""
    path = "/" + "\udcff" * 4_094
    long = target(executable=path, root=path, datadir=path, socket=path)
    servers = [messages.ServerReply(f"hostile {number}", long, outcomes("a", 10)) for number in range(79)]
    real = messages.ServerReply("real", target(), outcomes("a", 1_000))
    found = collected(*servers, real)
    assert found["real"] == real
    assert found["hostile 0"].outcomes == servers[0].outcomes
    shown = found["hostile 0"].target
    assert shown.datadir is not None
    assert shown.datadir.startswith("/\udcff")
    assert shown.datadir.endswith("…")


def test_paths_of_real_servers_are_sent_completely() -> None:
    one = target(datadir="/" + "d" * 4_095, executable="/é" * 300)
    assert messages.decode_target(messages.encode_target(one)) == one
