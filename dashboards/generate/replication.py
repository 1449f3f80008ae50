"""Define the dashboard for replicas: replication, semisynchronous and group replication, and Galera."""

from __future__ import annotations

from typing import Final

from generate import wait_colors
from generate.model import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    STACKS,
    YELLOW,
    Dashboard,
    Panel,
    Query,
    Row,
    board,
    read,
    run,
)  # fmt: skip
from generate.queries import increase, level, rate, series

_BY_THREAD: Final = ("channel", "thread")
_CHANNEL: Final = "{{channel}}"
_APPLIERS: Final = 'kind="applier"'
_YES: Final = ((0, "no", RED), (1, "yes", GREEN))

_STATE: Final = (
    Panel(
        "Replica threads", "state-timeline", "none",
        (Query(level("replication_running", by=_BY_THREAD, aggregate="min"), "{{thread}} {{channel}}"),),
        "Whether the receiver and the applier of each channel run. The name of the default channel is empty.",
        "*stopped*: because of an error or by hand. A receiver that connects is stopped, too.",
        (run("innoscope diagnose"), read("mysqld-exporter.md")),
        width=16, height=6, bands=((0, "stopped", RED), (1, "running", GREEN)),
    ),
    Panel(
        "Stopped threads", "stat", "none",
        (Query(f"count({series('replication_running')} == 0) or vector(0)", "stopped"),),
        "Replication threads that do not run.",
        "More than 0: the data get older. The panel *Errors* shows the reason.",
        (run("innoscope diagnose"), read("diagnose.md")),
        width=4, height=6, steps=((None, GREEN), (1, RED)),
    ),
    Panel(
        "Worst lag", "stat", "s",
        (Query(level("replication_lag_seconds", aggregate="max"), "lag"),),
        "The highest lag of all channels. Empty while a thread is stopped.",
        "More than the applications that read from the replica tolerate.",
        (STACKS, run("innoscope diagnose")),
        width=4, height=6, steps=((None, GREEN), (30, ORANGE), (300, RED)),
    ),
)  # fmt: skip

_LAG: Final = (
    Panel(
        "Lag", "timeseries", "s",
        (Query(level("replication_lag_seconds", by=["channel"], aggregate="max"), f"lag {_CHANNEL}"),
         Query(level("replication_delay_seconds", by=["channel"], aggregate="max"),
               f"configured delay {_CHANNEL}")),
        "How far the applier is behind what the receiver has received (Seconds_Behind_Source). Empty while a "
        "thread is stopped.",
        "Growth: the applier is blocked, or slower than the source.",
        (STACKS, run("innoscope diagnose"), board("contention")),
    ),
    Panel(
        "Relay logs", "timeseries", "bytes",
        (Query(level("replication_relay_log_bytes", by=["channel"], aggregate="max"), f"bytes {_CHANNEL}"),),
        "Size of the relay logs: what the receiver has written and the applier has not finished.",
        "Growth while the receiver runs: the applier does not keep up.",
        (run("innoscope diagnose"), read("mysqld-exporter.md")),
    ),
    Panel(
        "Errors", "timeseries", "none",
        (Query(level("replication_error", by=_BY_THREAD, aggregate="max"), "{{thread}} {{channel}}"),),
        "Number of the last error of each replication thread; 0 if there is none.",
        "1062 or 1032: the data differ from the source's. 1236: the source has purged binary logs.",
        (run("innoscope diagnose"), read("diagnose.md")),
    ),
)  # fmt: skip

_APPLIER: Final = (
    Panel(
        "What the applier waits for", "timeseries", "short",
        (Query(f"{level('threads', _APPLIERS, by=['wait'])} > 0", "{{wait}}"),),
        "Applier threads by wait class in the last snapshot.",
        "`row_lock`, `metadata_lock`: a query on the replica blocks it. `page_read`: the rows are not in the "
        "buffer pool. `replication` only: it waits for the source.",
        (STACKS, run("innoscope stacks --by wait"), read("waits.md")),
        width=16, stacked=True, colors=wait_colors.of(wait_colors.palette()),
    ),
    Panel(
        "CPU time of replication", "timeseries", "short",
        (Query(rate("mysqld_cpu_seconds", 'group="replication"'), "CPUs"),),
        "CPUs in use by replication threads.",
        "Near 1 with one applier thread: it is at its limit. Use parallel appliers.",
        (run("innoscope profile"), board("server")),
    ),
    Panel(
        "Read-only", "state-timeline", "none",
        (Query(level("read_only", aggregate="max"), "read_only"),),
        "Whether clients without special privileges can write.",
        "*writable* on a replica: clients can change its data. *read-only* on a source: all writes fail.",
        (run("innoscope diagnose"), read("mysqld-exporter.md")),
        width=24, height=4, bands=((0, "writable", BLUE), (1, "read-only", YELLOW)),
    ),
)  # fmt: skip

_HEARTBEAT: Final = (
    Panel(
        "Lag by heartbeat", "timeseries", "s",
        (Query(level("replication_heartbeat_lag_seconds", by=["source"], aggregate="max"),
               "server_id {{source}}"),),
        "Age of the newest heartbeat, by the server that wrote it. It includes the time that the receiver "
        "and intermediate replicas need. Empty unless sql.heartbeat_table is set in agent.toml.",
        "Growth while the panel *Lag* shows 0: the receiver, or a server between them, is behind.",
        (run("innoscope diagnose"), read("mysqld-exporter.md")),
        width=24,
    ),
)  # fmt: skip

_SEMISYNC: Final = (
    Panel(
        "Semisynchronous", "state-timeline", "none",
        (Query(level("semisync_up", by=["role"], aggregate="min"), "{{role}}"),),
        "Whether semisynchronous replication works, as source and as replica.",
        "*no*: commits do not wait for a replica, and may be lost with the source.",
        (run("innoscope diagnose"), run("innoscope stacks --wait semisync_ack")), bands=_YES,
    ),
    Panel(
        "Replicas that acknowledge", "timeseries", "short",
        (Query(level("semisync_replicas", aggregate="min"), "replicas"),),
        "Semisynchronous replicas that are connected to this source.",
        "0: commits wait for the timeout, and then replication is asynchronous.",
        (run("innoscope diagnose"), run("innoscope stacks --wait semisync_ack")),
    ),
    Panel(
        "Commits without acknowledgment", "timeseries", "short",
        (Query(increase("semisync_unacknowledged_commits"), "commits"),),
        "Commits that no replica acknowledged in time.",
        "More than 0: they may be lost with the source.",
        (run("innoscope diagnose"), run("innoscope stacks --wait semisync_ack")),
    ),
)  # fmt: skip

_GROUP: Final = (
    Panel(
        "Group member", "state-timeline", "none",
        (Query(level("group_member_state", by=["state"], aggregate="max"), "{{state}}"),
         Query(level("group_member_primary", aggregate="max"), "primary")),
        "The state of this member of the replication group, and whether it is a primary.",
        "Anything but *online*.",
        (run("innoscope diagnose"), read("diagnose.md")), bands=((0, "no", "text"), (1, "yes", BLUE)),
    ),
    Panel(
        "Members online", "timeseries", "short",
        (Query(level("group_members_online", aggregate="min"), "online"),),
        "Members of the group that are online, as this member sees it.",
        "Half of the members or fewer: the group has no majority and does not accept writes.",
        (run("innoscope diagnose"), read("diagnose.md")),
    ),
    Panel(
        "Transactions to apply", "timeseries", "short",
        (Query(level("group_applier_queue", aggregate="max"), "waiting"),),
        "Transactions of the group that wait to be applied on this member.",
        "Thousands: this member is slow, and flow control slows down all members.",
        (STACKS, run("innoscope diagnose")),
    ),
)  # fmt: skip

_GALERA: Final = (
    Panel(
        "Galera node", "state-timeline", "none",
        (Query(level("galera_ready", aggregate="min"), "ready"),
         Query(level("galera_primary", aggregate="min"), "in the primary component")),
        "Whether the node accepts statements and belongs to the majority.",
        "*no*: statements fail.",
        (run("innoscope diagnose"), read("diagnose.md")), bands=_YES,
    ),
    Panel(
        "Galera state", "state-timeline", "none",
        (Query(level("galera_state", aggregate="min"), "state"),),
        "State of the node (wsrep_local_state).",
        "Anything but *synced*, except while it is a donor for a new node.",
        (run("innoscope diagnose"), read("diagnose.md")),
        bands=(
            (0, "undefined", RED), (1, "joining", ORANGE), (2, "donor", YELLOW), (3, "joined", YELLOW),
            (4, "synced", GREEN), (5, "error", RED),
        ),
    ),
    Panel(
        "Nodes", "timeseries", "short",
        (Query(level("galera_nodes", aggregate="min"), "nodes"),),
        "Nodes of the cluster, as this node sees it.",
        "Fewer than configured.",
        (run("innoscope diagnose"), read("diagnose.md")),
    ),
    Panel(
        "Paused by flow control", "timeseries", "percentunit",
        (Query(rate("galera_flow_control_paused_seconds"), "paused"),),
        "Share of the time for which flow control paused replication on this node.",
        "More than a few percent: a slow node slows down all nodes.",
        (STACKS, run("innoscope diagnose")), width=6,
    ),
    Panel(
        "Pauses", "timeseries", "short",
        (Query(increase("galera_flow_control_sent"), "requested by this node"),
         Query(increase("galera_flow_control_received"), "requested by any node")),
        "Pauses that nodes requested because their queue was too long.",
        "*requested by this node*: this node is the slow one.",
        (STACKS, run("innoscope diagnose")), width=6,
    ),
    Panel(
        "Receive queue", "timeseries", "short",
        (Query(level("galera_receive_queue", aggregate="max"), "waiting"),),
        "Transactions of other nodes that wait to be applied.",
        "More than gcs.fc_limit: this node requests a pause.",
        (STACKS, run("innoscope diagnose")), width=6,
    ),
    Panel(
        "Commits and conflicts", "timeseries", "ops",
        (Query(rate("galera_commits"), "committed"),
         Query(rate("galera_certification_failures"), "failed certification"),
         Query(rate("galera_brute_force_aborts"), "aborted by the applier")),
        "Transactions of this node's clients by result.",
        "Failures near the number of commits: clients write the same rows on several nodes.",
        (run("innoscope diagnose"), board("contention")), width=6,
    ),
)  # fmt: skip

DASHBOARD: Final = Dashboard(
    "innoscope-replication",
    "Innoscope / Replication",
    "One replica: whether replication runs, how far it lags, and what the applier waits for. The rows for "
    "heartbeats, semisynchronous replication, group replication and Galera are collapsed, because their "
    "panels are empty on other servers.",
    (
        Row("State", _STATE),
        Row("Lag", _LAG),
        Row("Applier", _APPLIER),
        Row("Heartbeat", _HEARTBEAT, collapsed=True),
        Row("Semisynchronous replication", _SEMISYNC, collapsed=True),
        Row("Group replication", _GROUP, collapsed=True),
        Row("Galera", _GALERA, collapsed=True),
    ),
)
