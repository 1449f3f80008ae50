"""The start-up benchmark reports each limit that is exceeded."""

from __future__ import annotations

from bench import startup


def test_only_exceeded_limits_are_reported() -> None:
    limit = startup.LIMITS["stacks"]
    good = {"cpu_s": limit.cpu_s, "rss_mb": limit.rss_mb}
    slow, big = good | {"cpu_s": 9.0}, good | {"rss_mb": 900.0}

    assert startup.exceeded({"a": {"stacks": [good, good, slow]}}) == []
    assert startup.exceeded({"a": {"stacks": [slow, slow, good]}}) == [
        "a: stacks took 9.00 s of CPU, limit 0.25 s"
    ]
    assert startup.exceeded({"a": {"stacks": [big, big, good]}}) == ["a: stacks took 900 MB, limit 45 MB"]


def test_every_command_has_a_row_with_its_limits() -> None:
    runs = {command: [{"cpu_s": 0.1, "rss_mb": 30.0}] for command in startup.LIMITS}

    lines = startup.report({"a": runs}).splitlines()

    assert "| a | stacks | 1 | 0.10 | 0.25 | 30 | 45 |" in lines
    assert len(lines) == 2 + len(startup.LIMITS)
