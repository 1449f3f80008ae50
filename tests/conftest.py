"""Start each test server once per session, and check that the host meets the tests' requirements.

The tests in tests/unit do not have these requirements. They run as any user, without servers and BPF.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadFileScheduling

import scale
from innoscope.target import allowed_users
from servers import NAMES, Server
from servers.debian import MYSQL_UID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Groups of tests that share packages or observations, which are slow to produce. A group is a list of
#: prefixes of the tests' paths.
_GROUPS = (
    ("tests/install/",),
    ("tests/live/test_completeness.py", "tests/live/test_oracle.py", "tests/live/test_waits.py"),
)
_UNIT = Path(__file__).resolve().parent / "unit"

#: Requirements of all tests outside tests/unit, with the remedies. If a requirement is not met, the session
#: ends with an error. The tests are not skipped, because a skipped test proves nothing.
_CONDITIONS: tuple[tuple[Callable[[], bool], str], ...] = (
    (lambda: os.geteuid() == 0, "root is required (BPF, chroot): run them as root, or with sudo -E"),
    (
        Path("/sys/kernel/btf/vmlinux").exists,
        "this kernel has no BTF: boot one with CONFIG_DEBUG_INFO_BTF=y (every distribution's since 2021)",
    ),
)


#: Allowed owners of servers. Test servers run as root, or in a chroot as its user mysql (``MYSQL_UID``).
_RULE = f"users = ['mysql', 'mariadb', {MYSQL_UID}]\nremapped_uids = [0]\n"


@pytest.fixture(scope="session", autouse=True)
def servers_config() -> Iterator[Path]:
    """Configure the allowed owners of servers for all processes that the tests start."""
    with tempfile.TemporaryDirectory(prefix="innoscope-rule-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "servers.toml"
        path.write_text(_RULE)
        path.chmod(0o644)
        os.environ[allowed_users.VARIABLE] = str(path)
        yield path
        del os.environ[allowed_users.VARIABLE]


#: Directories and files of tests that `make test` runs in three processes. These tests name servers by pid or
#: socket, and other servers and BPF programs do not affect them.
_PARALLEL = frozenset({
    "browser", "fuzz", "install", "unit", "test_agent.py", "test_alerts.py", "test_bad_input.py",
    "test_blockers.py", "test_blocking.py", "test_blocking_connections.py", "test_completeness.py",
    "test_configured_names.py", "test_confined.py", "test_dashboard_data.py", "test_dashboard_schema.py",
    "test_diagnose_less.py", "test_diagnose_transactions.py", "test_discovery.py", "test_docs_examples.py",
    "test_escapes.py", "test_escapes_server.py", "test_fitted.py", "test_forced_methods.py",
    "test_google_pprof.py", "test_history_secrets.py", "test_history_sql.py", "test_hostile_files.py",
    "test_incident_live.py", "test_incident_secrets.py", "test_latch_owners.py", "test_library_functions.py",
    "test_memory.py", "test_metadata_holders.py", "test_mysqld_exporter.py", "test_namespaces.py",
    "test_oracle.py", "test_probe_counts.py", "test_profile_ends.py", "test_program_cache.py",
    "test_purge_delay.py", "test_push.py", "test_replication_alerts.py", "test_rule_tools.py",
    "test_secrets.py", "test_sensor_statements.py", "test_sensor_thread_kinds.py", "test_server_digests.py",
    "test_servers.py", "test_session_history.py", "test_settings.py", "test_sql.py", "test_sql_strangers.py",
    "test_state.py", "test_statements.py", "test_stripped.py", "test_swapped_files.py", "test_symbols.py",
    "test_time_caused.py", "test_toggle_chaos.py", "test_toggle_effects.py", "test_toggle_facts.py",
    "test_toggle_faults.py", "test_toggle_memory.py", "test_toggle_memory_refusals.py",
    "test_toggle_server_refusals.py", "test_toggle_sql.py", "test_top_terminal.py", "test_unchanged.py",
    "test_units.py", "test_unknown_versions.py", "test_upload_s3.py", "test_waits.py",
    "test_watch.py", "test_web_requests.py", "test_without_bpf.py",
})  # fmt: skip
#: Files of tests that `make test` runs in two processes. They inject faults, check the kernel for leftovers,
#: or count what a server does: one more busy process does not affect them, but the load of _PARALLEL would.
#: All other tests run alone, because they measure times or CPU time, or look at all processes of the host.
_PAIRED = frozenset({
    "test_agent_faults.py", "test_bpftrace.py", "test_collector_faults.py", "test_every_collector_call.py",
    "test_every_governor_call.py", "test_governor_faults.py",
    "test_hanging_files.py", "test_hostile_crowd.py", "test_hostile_memory.py", "test_killed.py",
    "test_latency_faults.py", "test_probe_maps.py", "test_probe_owner_ends.py", "test_probe_owner_killed.py",
    "test_probes.py", "test_profile_crowds.py", "test_selfprofile.py",
    "test_sensor.py", "test_sensor_faults.py", "test_sensor_members.py", "test_sensor_parts.py",
    "test_thread_churn.py", "test_threads_killed.py", "test_trace_faults.py", "test_uprobe_links.py",
    "test_uprobes.py", "test_web_attacks.py",
})  # fmt: skip
#: Values of the parameter ``load`` with which a test runs alone. Eight clients and threads of the server that
#: wake each other up can monopolize both CPUs: on Linux 6.18, all other processes were starved for one to
#: three minutes.
_ALONE = frozenset({"cpu"})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--full``, which selects the suite of `make test-all`, and ``--repetitions``."""
    parser.addoption("--full", action="store_true", help="run the long tests too, and all repetitions")
    parser.addoption("--repetitions", type=int, help="of tests/live/test_profile.py, instead of 1 or 3")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the size of the suite before any test module reads it."""
    scale.chosen.full = config.option.full
    scale.chosen.repetitions = config.option.repetitions


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need not run alone. Deselect the long tests unless ``--full`` is given."""
    for item in items:
        if _parameters(item).get("load") in _ALONE:
            continue
        if _PARALLEL & {item.path.name, item.path.parent.name}:
            item.add_marker("parallel")
        elif item.path.name in _PAIRED:
            item.add_marker("paired")
    if config.option.full:
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def _parameters(item: pytest.Item) -> dict[str, object]:
    """Return the parameters of a test."""
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


class _ByFile(LoadFileScheduling):  # type: ignore[misc]
    """A scheduler that assigns the tests of a file, or of a group in _GROUPS, to the same process."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((group[0] for group in _GROUPS if file.startswith(group)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Use the scheduler ``_ByFile`` for ``--dist loadfile``."""
    return _ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_sessionstart(session: pytest.Session) -> None:
    """End the session, and show the remedy, if this host cannot run the selected tests.

    Also restore Python's handler for SIGINT: tests interrupt commands with SIGINT, but a shell without job
    control (such as a script) starts background jobs with SIGINT ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    missing = [remedy for met, remedy in _CONDITIONS if not met()]
    if missing and not session.config.option.collectonly and not _only_unit_tests(session.config):
        remedies = "\n".join(f"- {remedy}" for remedy in missing)
        pytest.exit(
            f"cannot run these tests:\n{remedies}\nThose in tests/unit need none of this: make unit",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


def _only_unit_tests(config: pytest.Config) -> bool:
    """Return whether all paths on pytest's command line are in tests/unit."""
    paths = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    return all(path.resolve().is_relative_to(_UNIT) for path in paths)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Restore the logging configuration after a test, because commands change it for the whole process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture(scope="session")
def running() -> Iterator[dict[str, Server]]:
    """Yield the servers that the fixture ``server`` has started, by name."""
    started: dict[str, Server] = {}
    yield started
    for one in started.values():
        one.__exit__()


@pytest.fixture(scope="session")
def server(running: dict[str, Server]) -> Callable[[str], Server]:
    """Return a function that starts the named server on first use, with the default options, for the session.

    A test that reconfigures or stops a server must start its own: ``with Server(name, options=...)``.
    """

    def started(name: str) -> Server:
        if name not in running or not running[name].running:
            if name in running:
                running[name].close()
            running[name] = Server(name)
            running[name].__enter__()
        return running[name]

    return started


@pytest.fixture
def no_other_server(running: dict[str, Server]) -> None:
    """Stop the session's servers for a test that measures the cost of observing its own server."""
    for one in running.values():
        one.__exit__()
    running.clear()


@pytest.fixture(params=NAMES)
def any_server(request: pytest.FixtureRequest, server: Callable[[str], Server]) -> Server:
    """Return one of the five servers. A test that uses this fixture runs once on each of them."""
    return server(request.param)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a temporary directory that servers can read; they cannot read pytest's directories."""
    with tempfile.TemporaryDirectory(prefix="innoscope-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path
