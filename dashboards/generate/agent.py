"""Define the dashboard for Innoscope itself: its cost, its health and missing data."""

from __future__ import annotations

from typing import Final

from generate.model import (
    GREEN,
    ORANGE,
    RED,
    Column,
    Dashboard,
    Panel,
    Query,
    Row,
    board,
    read,
    run,
)  # fmt: skip
from generate.queries import OWN, increase, level, rate, ratio, series

_EACH: Final = ("instance",)
_SERVERS: Final = ("instance", "server")
_NAME: Final = "{{instance}} {{server}}"
_PROBE: Final = "{{server}} {{probe}}"

_GLANCE: Final = (
    Panel(
        "Agents down",
        "stat",
        "none",
        (Query(f"count(up{{{OWN}}} == 0) or vector(0)", "down"),),
        "Agents that Prometheus could not scrape.",
        "More than 0: an agent is down or unreachable.",
        (run("systemctl status innoscope-agent"), read("agent.md")),
        width=4,
        height=4,
        steps=((None, GREEN), (1, RED)),
    ),
    Panel(
        "Agents without sensor",
        "stat",
        "none",
        (Query(f"count({series('sensor_up')} == 0) or vector(0)", "agents"),),
        "Agents that do not reach their sensor. Without it, only SQL metrics are available: no stacks, "
        "probes or memory metrics.",
        "More than 0.",
        (run("systemctl status innoscope-sensor"), read("sensor.md")),
        width=4,
        height=4,
        steps=((None, GREEN), (1, RED)),
    ),
    Panel(
        "Failing collectors",
        "stat",
        "none",
        (Query(f"count({series('collector_success')} == 0) or vector(0)", "failing"),),
        "Collectors whose last run failed, over all servers. The table below shows the reasons.",
        "More than 0.",
        (run("innoscope doctor"), read("agent.md")),
        width=4,
        height=4,
        steps=((None, GREEN), (1, RED)),
    ),
    Panel(
        "CPU, busiest host",
        "stat",
        "percentunit",
        (Query(f"max({rate('own_cpu_seconds', by=_EACH)})", "of one core"),),
        "CPU time of the agent and the sensor together, on the host with the highest value.",
        "Above 5 % of a core, the default budget of the agent alone.",
        (run("innoscope self-profile"), read("self-profile.md")),
        width=4,
        height=4,
        steps=((None, GREEN), (0.05, ORANGE), (0.2, RED)),
    ),
    Panel(
        "Probes: worst overhead",
        "stat",
        "percentunit",
        (Query(level("probe_overhead_ratio", aggregate="max"), "of the server's CPUs"),),
        "Cost of the probes on the server with the highest value.",
        "Above the budget (1 % by default) for more than a few seconds: the governor detaches probes.",
        (run("innoscope probes status"), read("probes.md")),
        width=4,
        height=4,
        steps=((None, GREEN), (0.01, ORANGE), (0.02, RED)),
    ),
    Panel(
        "Series dropped",
        "stat",
        "none",
        (Query(increase("series_dropped"), "dropped"),),
        "Series dropped because a label has more values than its limit.",
        "More than 0: some sites, mutexes or wait classes are missing.",
        (read("metrics.md"), board("contention")),
        width=4,
        height=4,
        steps=((None, GREEN), (1, ORANGE)),
    ),
)

_COST: Final = (
    Panel(
        "CPU time",
        "timeseries",
        "percentunit",
        (Query(rate("own_cpu_seconds", by=["instance", "process"]), "{{instance}} {{process}}"),),
        "CPU time of the agent and the sensor, as a share of one core.",
        "The agent uses more than 5 %, its default budget: it logs a warning.",
        (run("innoscope self-profile"), read("self-profile.md")),
    ),
    Panel(
        "Memory",
        "timeseries",
        "bytes",
        (Query(level("own_resident_memory_bytes", by=["instance", "process"]), "{{instance}} {{process}}"),),
        "Resident memory of the agent and the sensor.",
        "Growth for days, or above 200 MB.",
        (run("innoscope doctor"), read("performance.md")),
    ),
    Panel(
        "Scrapes",
        "timeseries",
        "s",
        (Query(f"max by (instance) (scrape_duration_seconds{{{OWN}}})", "{{instance}}"),),
        "Duration of a scrape, as measured by Prometheus.",
        "Near 1 s: a server or the sensor is slow.",
        (run("innoscope doctor"), read("agent.md")),
        width=4,
    ),
    Panel(
        "Series",
        "timeseries",
        "short",
        (Query(f"max by (instance) (scrape_samples_scraped{{{OWN}}})", "{{instance}}"),),
        "Series per scrape.",
        "Thousands for one server.",
        (read("metrics.md"), read("performance.md")),
        width=4,
    ),
)

_BUDGET: Final = (
    Panel(
        "Probes against the budget", "timeseries", "percentunit",
        (
            Query(level("probe_overhead_ratio", by=_SERVERS, aggregate="max"), _NAME),
            Query(level("probe_budget_ratio", aggregate="max"), "budget"),
        ),
        "Cost of all probes, as a share of the server's CPUs.",
        "Above the budget for more than a few seconds.",
        (run("innoscope probes status"), read("probes.md")),
        width=12, lines=("budget",),
    ),
    Panel(
        "Cost, by probe", "timeseries", "percentunit",
        (Query(f"topk(10, {rate('probe_cost_seconds', by=['server', 'probe'])})", _PROBE),),
        "The ten most expensive probes: CPU time of the server, as a share of one core.",
        "A probe that uses most of the budget: it gets a duty cycle.",
        (run("innoscope probes status"), read("performance.md")),
        width=12,
    ),
)  # fmt: skip

_PROBES: Final = (
    Panel(
        "Hits, by probe", "timeseries", "ops",
        (Query(f"topk(10, {rate('probe_hits', by=['server', 'probe'])})", _PROBE),),
        "The ten probes with the most hits.",
        "Tens of thousands per second: the governor reduces the duty cycle.",
        (run("innoscope probes status"), run("innoscope probes measure")),
        width=6,
    ),
    Panel(
        "Probes on a duty cycle", "timeseries", "percentunit",
        (
            Query(f"bottomk(10, min by (server, probe) ({series('probe_duty_ratio')}))", _PROBE),
        ),
        "The ten probes with the lowest duty cycle (share of the time for which they are attached).",
        "Below 1, counts are estimates. At 0, the probe is off because it is too expensive.",
        (run("innoscope probes status"), read("probes.md")),
        most=1, width=6,
    ),
    Panel(
        "Probes attached", "timeseries", "short",
        (
            Query(level("probe_attached", by=_SERVERS), f"{_NAME} attached"),
            Query(f"count by (instance, server) ({series('probe_attached')})", f"{_NAME} all"),
        ),
        "Attached probes, and all probes that this server supports.",
        "Far fewer than all: missing symbols or privileges.",
        (run("innoscope probes list"), read("symbols.md")),
        width=6,
    ),
    Panel(
        "Cost of a hit", "timeseries", "s",
        (
            Query(level("probe_hit_cost_seconds", by=["instance", "probe_type"], aggregate="max"),
                  "{{instance}} {{probe_type}}"),
        ),
        "Cost of one hit, as measured on the host when the sensor started.",
        "Above 10 µs: single-stepping is expensive on this virtual machine, so the budget allows fewer hits.",
        (run("innoscope probes measure"), read("performance.md")),
        width=6,
    ),
)  # fmt: skip

_WORK: Final = (
    Panel(
        "Failures", "table", "none",
        (Query(f"max by (instance, server, collector, reason) ({series('collector_failure_info')})", ""),),
        "Collectors whose last run failed, with the reason.",
        "*timeout*, *gone*, *refused*: the server. *denied*, *rights*, *unsupported*: the installation.",
        (run("innoscope doctor"), read("agent.md")),
        columns=(
            Column("instance", "agent", link="http://${__value.raw}/"), Column("server", "server"),
            Column("collector", "collector"), Column("reason", "reason"),
        ),
    ),
    Panel(
        "Collectors: duration", "timeseries", "s",
        (Query(level("collector_duration_seconds", by=["collector"], aggregate="max"), "{{collector}}"),),
        "Duration of the last run of each collector, maximum over all servers.",
        "Above 0.35 s: it is omitted from the scrape and reported as `timeout`.",
        (run("innoscope doctor"), read("sensor.md")),
    ),
    Panel(
        "Snapshot duration", "timeseries", "s",
        (Query(level("look_seconds", by=_SERVERS, aggregate="max"), _NAME),),
        "Duration of a snapshot of all threads, from the copy to the wait classes. No thread is stopped.",
        "Above 0.1 s: very many threads, or no free CPU.",
        (run("innoscope stacks"), read("performance.md")),
    ),
    Panel(
        "Stacks by trust", "timeseries", "percentunit",
        (
            Query(
                ratio(
                    rate("thread_samples", by=["trust"]),
                    f"on () group_left () ({rate('thread_samples')} > 0)",
                ),
                "{{trust}}",
            ),
        ),
        "Stacks by trust level: *exact*, or *on_cpu* (a fresh sample of a running thread).",
        "More than a few percent *incomplete* or *torn*.",
        (run("innoscope stacks"), read("architecture.md")),
        stacked=True, most=1,
    ),
    Panel(
        "Restarts", "timeseries", "short",
        (
            Query(increase("sensor_restarts", by=_EACH), "{{instance}} sensor"),
            Query(increase("own_thread_restarts", by=["instance", "process"]), "{{instance}} {{process}}"),
            Query(increase("sensor_watch_failures", by=_EACH), "{{instance}} server not watched"),
            Query(series("own_threads_stuck"), "{{instance}} stuck in {{process}}"),
        ),
        "Restarts of sensors and threads, hung threads, and servers that could not be watched.",
        "Repeated restarts of a sensor: it is killed, or it fails. Hung threads: the log names the server.",
        (run("journalctl -u innoscope-sensor"), run("journalctl -u innoscope-agent")),
    ),
    Panel(
        "Memory minus SQL", "timeseries", "short",
        (
            Query(f"topk(10, max by (server, name) (abs({series('memory_sql_difference')})))",
                  "{{server}} {{name}}"),
        ),
        "The ten largest differences between values read from memory and over SQL, one after the other.",
        "A constant value that differs for minutes: a wrong offset. Small differences of changing values "
        "are normal.",
        (run("innoscope doctor"), read("memory.md")),
    ),
)  # fmt: skip

_PUSH: Final = (
    Panel(
        "Profiles pushed",
        "timeseries",
        "short",
        (
            Query(increase("push_profiles", by=_EACH), "{{instance}} accepted"),
            Query(increase("push_failures", by=["instance", "reason"]), "{{instance}} failed: {{reason}}"),
            Query(increase("push_dropped", by=["instance", "reason"]), "{{instance}} dropped: {{reason}}"),
        ),
        "Profiles accepted by the receiver of [push], failed attempts, and dropped profiles. Empty if "
        "nothing is pushed.",
        "Repeated failures; dropped profiles are lost.",
        (run("innoscope agent --push-once"), read("fleet.md")),
        width=8,
    ),
    Panel(
        "Bytes pushed, bytes waiting",
        "timeseries",
        "bytes",
        (
            Query(rate("push_bytes", by=_EACH), "{{instance}} pushed per second"),
            Query(level("push_queue_bytes", by=_EACH), "{{instance}} waiting"),
        ),
        "Bytes sent (gzip), and bytes that wait in the agent's memory.",
        "Growing waiting bytes: the receiver is slow or unavailable.",
        (run("innoscope agent --push-once"), read("fleet.md")),
        width=8,
    ),
    Panel(
        "Time since last push",
        "timeseries",
        "s",
        (
            Query(
                f"time() - max by (instance) ({series('push_last_success_timestamp_seconds')} > 0)",
                "{{instance}}",
            ),
        ),
        "Time since the receiver accepted a profile.",
        "More than a few times push.interval_seconds.",
        (run("journalctl -u innoscope-agent"), read("fleet.md")),
        width=8,
    ),
)

_WHICH: Final = (
    Panel(
        "Versions",
        "table",
        "none",
        (Query(f"max by (instance, version) ({series('build_info')})", ""),),
        "Innoscope's version on each host.",
        "Versions that differ for longer than an upgrade takes.",
        (run("innoscope --version"), read("agent.md")),
        width=24,
        height=6,
        columns=(Column("instance", "agent", link="http://${__value.raw}/"), Column("version", "version")),
    ),
)

DASHBOARD: Final = Dashboard(
    "innoscope-agent",
    "Innoscope / Agent",
    "The cost of Innoscope itself, the state of its parts, and what it omits.",
    (
        Row("At a glance", _GLANCE),
        Row("Cost", _COST),
        Row("Probes", _BUDGET),
        Row("Collectors and snapshots", _WORK),
        Row("More about probes", _PROBES, collapsed=True),
        Row("Push", _PUSH, collapsed=True),
        Row("Versions", _WHICH, collapsed=True),
    ),
    one_server=False,
)
