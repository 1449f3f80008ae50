"""Innoscope itself: what it takes, whether it works, what it leaves out."""

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
        "Agents that answer",
        "stat",
        "none",
        (Query(f"sum(up{{{OWN}}})", "up"), Query(f"count(up{{{OWN}}})", "all")),
        "Agents that Prometheus could scrape, of all.",
        "Fewer than all: the agent is down, or the way to it is.",
        (run("systemctl status innoscope-agent"), read("agent.md")),
        width=4,
        height=4,
    ),
    Panel(
        "Sensors that answer",
        "stat",
        "none",
        (Query(level("sensor_up"), "up"), Query(f"count({series('sensor_up')})", "all")),
        "Agents that reach their sensor. Without it there is SQL only: no stacks, no probes, no numbers from "
        "memory.",
        "Fewer than all.",
        (run("systemctl status innoscope-sensor"), read("sensor.md")),
        width=4,
        height=4,
    ),
    Panel(
        "Collectors that fail",
        "stat",
        "none",
        (Query(f"count({series('collector_success')} == 0) or vector(0)", "failing"),),
        "Collectors whose last run failed, over all servers. The table below has the reasons.",
        "More than 0.",
        (run("innoscope doctor"), read("agent.md")),
        width=4,
        height=4,
        steps=((None, GREEN), (1, RED)),
    ),
    Panel(
        "CPU of the busiest",
        "stat",
        "percentunit",
        (Query(f"max({rate('own_cpu_seconds', by=_EACH)})", "of one core"),),
        "What agent and sensor take together on the host where they take most.",
        "Above 5 % of a core, the agent's default budget.",
        (run("innoscope self-profile"), read("self-profile.md")),
        width=4,
        height=4,
        steps=((None, GREEN), (0.05, ORANGE), (0.2, RED)),
    ),
    Panel(
        "Probes: worst overhead",
        "stat",
        "percentunit",
        (Query(level("probe_overhead_ratio", how="max"), "of the server's CPUs"),),
        "What the probes cost the server that they cost most.",
        "Above the budget (1 % by default) for more than moments: the governor takes probes off.",
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
        "Series left out because their label had more values than its bound.",
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
        "What agent and sensor take, as a share of one core.",
        "More than 5 % for one of them: the agent then warns in its log.",
        (run("innoscope self-profile"), read("self-profile.md")),
    ),
    Panel(
        "Memory",
        "timeseries",
        "bytes",
        (Query(level("own_resident_memory_bytes", by=["instance", "process"]), "{{instance}} {{process}}"),),
        "Resident memory of agent and sensor.",
        "Growth for days, or above 200 MB.",
        (run("innoscope doctor"), read("performance.md")),
    ),
    Panel(
        "Scrapes",
        "timeseries",
        "s",
        (Query(f"max by (instance) (scrape_duration_seconds{{{OWN}}})", "{{instance}}"),),
        "How long a scrape took, as Prometheus measured it.",
        "Towards 1 s: some server or the sensor is waited for.",
        (run("innoscope doctor"), read("agent.md")),
        width=4,
    ),
    Panel(
        "Series",
        "timeseries",
        "short",
        (Query(f"max by (instance) (scrape_samples_scraped{{{OWN}}})", "{{instance}}"),),
        "Series of a scrape.",
        "Thousands for one server.",
        (read("metrics.md"), read("performance.md")),
        width=4,
    ),
)

_PROBES: Final = (
    Panel(
        "Probes against the budget", "timeseries", "percentunit",
        (
            Query(level("probe_overhead_ratio", by=_SERVERS, how="max"), _NAME),
            Query(level("probe_budget_ratio", how="max"), "budget"),
        ),
        "Cost of all probes, as a share of the CPU time that the server may use.",
        "Above the budget for more than moments.",
        (run("innoscope probes status"), read("probes.md")),
        lines=("budget",),
    ),
    Panel(
        "Cost, by probe", "timeseries", "percentunit",
        (Query(f"topk(10, {rate('probe_cost_seconds', by=['server', 'probe'])})", _PROBE),),
        "The ten dearest probes: CPU time of the server, as a share of one core.",
        "One that takes most of the budget: it is the one with a duty cycle.",
        (run("innoscope probes status"), read("performance.md")),
    ),
    Panel(
        "Hits, by probe", "timeseries", "ops",
        (Query(f"topk(10, {rate('probe_hits', by=['server', 'probe'])})", _PROBE),),
        "The ten hottest probes.",
        "Tens of thousands a second: the governor acts.",
        (run("innoscope probes status"), run("innoscope probes measure")),
    ),
    Panel(
        "Probes on a duty cycle", "timeseries", "percentunit",
        (
            Query(f"bottomk(10, min by (server, probe) ({series('probe_duty_ratio')}))", _PROBE),
        ),
        "The ten probes with the smallest share of the time in which they are attached.",
        "Below 1 numbers are estimates; at 0 the probe is off because it would cost too much.",
        (run("innoscope probes status"), read("probes.md")),
        most=1,
    ),
    Panel(
        "Probes attached", "timeseries", "short",
        (
            Query(level("probe_attached", by=_SERVERS), f"{_NAME} attached"),
            Query(f"count by (instance, server) ({series('probe_attached')})", f"{_NAME} all"),
        ),
        "Probes that are attached, of those that this server could have.",
        "Far fewer than all: no symbols, or no rights.",
        (run("innoscope probes list"), read("symbols.md")),
    ),
    Panel(
        "Cost of a hit", "timeseries", "s",
        (
            Query(level("probe_hit_cost_seconds", by=["instance", "probe_type"], how="max"),
                  "{{instance}} {{probe_type}}"),
        ),
        "What one hit costs, as measured on that host when the sensor started.",
        "Above 10 µs: a virtual machine that single-steps dearly; the same budget buys less.",
        (run("innoscope probes measure"), read("performance.md")),
    ),
)  # fmt: skip

_WORK: Final = (
    Panel(
        "Failures", "table", "none",
        (Query(f"max by (instance, server, collector, reason) ({series('collector_failure_info')})", ""),),
        "Collectors whose last run failed, and why. None is well.",
        "*timeout*, *gone*, *refused*: the server. *denied*, *rights*, *unsupported*: the installation.",
        (run("innoscope doctor"), read("agent.md")),
        columns=(
            Column("instance", "agent", link="http://${__value.raw}/"), Column("server", "server"),
            Column("collector", "collector"), Column("reason", "reason"),
        ),
    ),
    Panel(
        "Collectors: duration", "timeseries", "s",
        (Query(level("collector_duration_seconds", by=["collector"], how="max"), "{{collector}}"),),
        "The longest last run of each collector, over all servers.",
        "Above 0.35 s: it is left out of the scrape and told of as `timeout`.",
        (run("innoscope doctor"), read("sensor.md")),
    ),
    Panel(
        "Looks at all threads", "timeseries", "s",
        (Query(level("look_seconds", by=_SERVERS, how="max"), _NAME),),
        "How long a look took, from the copy to the wait classes. Nothing is stopped meanwhile.",
        "Above 0.1 s: very many threads, or no CPU to be had.",
        (run("innoscope stacks"), read("performance.md")),
    ),
    Panel(
        "Stacks that can be believed", "timeseries", "percentunit",
        (
            Query(
                ratio(
                    rate("thread_samples", by=["trust"]),
                    f"on () group_left () ({rate('thread_samples')} > 0)",
                ),
                "{{trust}}",
            ),
        ),
        "Stacks by how far they can be believed: *exact*, *on_cpu* fresh from a running thread.",
        "More than a few percent *incomplete* or *torn*.",
        (run("innoscope stacks"), read("architecture.md")),
        stacked=True, most=1,
    ),
    Panel(
        "Restarts", "timeseries", "short",
        (
            Query(increase("sensor_restarts", by=_EACH), "{{instance}} another sensor"),
            Query(increase("own_thread_restarts", by=["instance", "process"]), "{{instance}} {{process}}"),
            Query(increase("sensor_watch_failures", by=_EACH), "{{instance}} server not watched"),
            Query(series("own_threads_stuck"), "{{instance}} stuck in {{process}}"),
        ),
        "Sensors and threads that were replaced, threads that hang, servers that could not be watched.",
        "A sensor that comes and goes: it is killed, or it fails. Threads that hang: the log names the "
        "server.",
        (run("journalctl -u innoscope-sensor"), run("journalctl -u innoscope-agent")),
    ),
    Panel(
        "Memory minus SQL", "timeseries", "short",
        (
            Query(f"topk(10, max by (server, name) (abs({series('memory_sql_difference')})))",
                  "{{server}} {{name}}"),
        ),
        "The ten largest differences between what memory and SQL tell, read one after the other.",
        "A number that stands still and differs for long: a wrong offset. Small differences of what moves "
        "are none.",
        (run("innoscope doctor"), read("memory.md")),
    ),
)  # fmt: skip

_PUSH: Final = (
    Panel(
        "Profiles pushed",
        "timeseries",
        "short",
        (
            Query(increase("push_profiles", by=_EACH), "{{instance}} taken"),
            Query(increase("push_failures", by=["instance", "reason"]), "{{instance}} failed: {{reason}}"),
            Query(increase("push_dropped", by=["instance", "reason"]), "{{instance}} given up: {{reason}}"),
        ),
        "Profiles that the receiver of [push] took, attempts that failed, profiles that were given up. Empty "
        "where nothing is pushed.",
        "Failures that go on; anything given up is lost.",
        (run("innoscope agent --push-once"), read("fleet.md")),
        width=8,
    ),
    Panel(
        "Bytes pushed, bytes waiting",
        "timeseries",
        "bytes",
        (
            Query(rate("push_bytes", by=_EACH), "{{instance}} pushed a second"),
            Query(level("push_queue_bytes", by=_EACH), "{{instance}} waiting"),
        ),
        "What goes out, gzipped, and what waits in the agent's memory.",
        "Waiting bytes that grow: the receiver does not keep up or is away.",
        (run("innoscope agent --push-once"), read("fleet.md")),
        width=8,
    ),
    Panel(
        "Since the last profile was taken",
        "timeseries",
        "s",
        (
            Query(
                f"time() - max by (instance) ({series('push_last_success_timestamp_seconds')} > 0)",
                "{{instance}}",
            ),
        ),
        "How long ago the receiver took a profile.",
        "More than a few of push.interval_seconds.",
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
        "Which Innoscope runs where.",
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
    "What Innoscope itself takes, whether its parts work, and what it leaves out.",
    (
        Row("At a glance", _GLANCE),
        Row("Cost", _COST),
        Row("Probes", _PROBES),
        Row("Collectors and looks", _WORK),
        Row("Push", _PUSH),
        Row("Which Innoscope", _WHICH),
    ),
    one_server=False,
)
