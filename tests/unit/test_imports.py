"""Imports follow the layers of docs/architecture.md, and the daemons cannot change a server."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "agent" / "innoscope"

#: The packages, lowest layer first. Each may import itself and the layers before it (docs/architecture.md).
LAYERS = (
    "common", "target", "sampling", "probes", "memory", "metrics", "diagnose", "toggles", "daemon", "cli",
)  # fmt: skip
#: Maximum number of function-local imports. A comment at each import gives the reason.
MOST_LOCAL_IMPORTS = 20


def imported(path: Path) -> set[str]:
    """Return the layers that a module imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("innoscope"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.name.split(".")[1] for name in node.names if name.name.startswith("innoscope.")}
    return found & set(LAYERS)


def test_every_package_is_a_layer() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}

    assert packages == set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_lower_layers(layer: str) -> None:
    allowed = set(LAYERS[: LAYERS.index(layer) + 1])
    for path in (PACKAGE / layer).rglob("*.py"):
        against = imported(path) - allowed
        assert not against, f"{path.relative_to(PACKAGE)} imports {', '.join(sorted(against))}"


def test_no_module_imports_itself_indirectly() -> None:
    """Also follow imports under ``TYPE_CHECKING``."""
    modules = {name_of(path): path for path in PACKAGE.rglob("*.py")}
    graph = {name: imported_modules(path) & modules.keys() - {name} for name, path in modules.items()}

    TopologicalSorter(graph).prepare()  # raises CycleError, with the cycle


def test_architecture_names_the_layers_in_this_order() -> None:
    text = (PACKAGE.parents[1] / "docs/architecture.md").read_text()

    assert " -> ".join(LAYERS) in " ".join(text.split())


def test_local_imports_are_few_and_have_a_reason() -> None:
    found = []
    for path in PACKAGE.rglob("*.py"):
        lines = path.read_text().splitlines()
        for function in ast.walk(ast.parse("\n".join(lines))):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for node in ast.walk(function):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    found.append(node)
                    near = lines[node.lineno - 2] + lines[node.lineno - 1]
                    assert "#" in near, f"{path.relative_to(PACKAGE)}:{node.lineno} gives no reason"

    assert len(found) <= MOST_LOCAL_IMPORTS


def name_of(path: Path) -> str:
    """Return the name of the module in a file."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(path: Path) -> set[str]:
    """Return the names of the modules that a module imports, and of the members that it imports from them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("innoscope"):
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            # ``from package import module`` counts as an import of the module, but not of the package.
            found |= {name for name in members if file_of(name).exists()} or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def file_of(module: str) -> Path:
    path = PACKAGE.parent / Path(*module.split("."))
    return path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"


def modules_from(*starts: str) -> set[str]:
    """Return all modules of innoscope that the given modules import, directly or indirectly.

    Modules whose names occur as strings are included: they are imported by name or started with ``-m``.
    """
    found: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        file = file_of(name)
        if name in found or not file.exists():
            continue
        found.add(name)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("innoscope"):
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names if alias.name.startswith("innoscope")]
            elif isinstance(node, ast.Constant) and re.fullmatch(r"innoscope(\.\w+)+", str(node.value)):
                waiting.append(str(node.value))
    return found


def starting(modules: set[str]) -> set[str]:
    """Return the modules that can start another program."""
    calls = re.compile(
        r"\b(subprocess|multiprocessing|pty|posix_spawn\w*|os\.(exec|spawn|system|popen)\w*)\b"
    )
    return {name for name in modules if calls.search(file_of(name).read_text())}


#: For each daemon, the modules that start a program, each with the module that the program runs. cli.main
#: imports only the module of the command that it runs.
DAEMONS = {
    "agent": {"innoscope.daemon.agent.child": "innoscope.cli.main"},  # if started as root
    "sensor": {"innoscope.probes.build_cache": "innoscope.probes.bcc_worker"},
}


@pytest.mark.parametrize("process", DAEMONS)
def test_neither_a_daemon_nor_programs_that_it_starts_can_change_a_server(process: str) -> None:
    reached = modules_from("innoscope.cli.main", f"innoscope.cli.commands.{process}")

    assert f"innoscope.daemon.{process}.main" in reached, "modules_from must follow this import"
    assert not {name for name in reached if name.startswith("innoscope.toggles")}
    assert not reached & {"innoscope.cli.commands.toggle", "innoscope.cli.commands.unstick"}
    assert starting(reached) == set(DAEMONS[process]), "another module can start programs"
    assert set(DAEMONS[process].values()) <= reached, "modules_from must follow the started module"


def test_agent_starts_only_the_sensor() -> None:
    words = [
        [item.value for item in node.elts if isinstance(item, ast.Constant)]
        for node in ast.walk(ast.parse(file_of("innoscope.daemon.agent.child").read_text()))
        if isinstance(node, ast.List)
    ]

    assert ["-P", "-m", "innoscope.cli.main"] in words
    assert ["sensor", "--sensor-socket"] in words


def test_no_daemon_starts_py_spy() -> None:
    commands = (f"innoscope.cli.commands.{process}" for process in DAEMONS)
    reached = modules_from(*commands, "innoscope.cli.main")
    naming = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if '"py-spy"' in path.read_text()
    }

    assert naming == {"cli/py_spy.py"}
    assert "innoscope.cli.py_spy" not in reached


def test_agent_imports_nothing_from_the_sensor() -> None:
    reached = modules_from("innoscope.cli.commands.agent")

    assert "innoscope.daemon.protocol.client" in reached, "modules_from must follow this import"
    assert not {name for name in reached if name.startswith("innoscope.daemon.sensor")}


#: Modules that a daemon never uses, and that would increase its resident memory: in the sensor, OpenSSL
#: (3.5 MB) and the modules for HTTP, SQL and metrics; in the agent, the modules for the sensor's work (1 MB).
NEVER_USED = {
    "sensor": {"_hashlib", "_ssl", "http.client", "pymysql", "prometheus_client"},
    "agent": {"innoscope.memory.reader", "innoscope.probes", "innoscope.sampling.engine"},
}


@pytest.mark.parametrize("process", NEVER_USED)
def test_daemon_does_not_load_modules_that_it_never_uses(process: str) -> None:
    code = f"import sys, innoscope.cli.main, innoscope.cli.commands.{process}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())

    assert f"innoscope.daemon.{process}.main" in loaded
    assert not loaded & NEVER_USED[process]


def test_started_modules_are_not_searched_in_the_current_folder() -> None:
    """Check that ``python -m`` is run with -P, without which it searches the current directory first."""
    started = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.List):
                words = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
                if "-m" in words:
                    started.append((path.name, words[words.index("-m") - 1]))

    assert len(started) >= 3
    assert {before for _, before in started} == {"-P"}, started
