"""Initialize one data directory per server; copying it is faster than initializing another."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from servers import cache
from servers.errors import ServerError
from servers.launch import hand_over, program
from servers.run import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers.fetch import Installation
    from servers.folder import Folder

#: Maximum seconds to initialize a data directory; an idle machine needs 2 to 5 s.
_TIMEOUT = 120

#: SQL files in MariaDB's directory share/mysql, named without the prefix ``mysql_``. In 11.8, they are in
#: share/mariadb, with the prefix ``mariadb_``.
_SYSTEM_TABLES = ("system_tables", "performance_tables", "system_tables_data")


def initialise(installation: Installation, folder: Folder) -> None:
    """Initialize a data directory with the server's own tool."""
    spec, home, data = installation.spec, installation.home, folder.data
    print(f"servers: {spec.name}: initialising its data directory (once)", flush=True)
    match spec.bootstrap:
        case "copy":
            shutil.copytree(home / spec.data, data, ignore=shutil.ignore_patterns("META-INF"))
        case "initialize":
            data_option = f"--datadir={folder.inside}/data"
            _run([*program(installation), "--initialize-insecure", data_option], installation)
        case "install-db":
            _run(_install_db(installation, folder), installation)
        case "bootstrap":
            folder.data.mkdir()
            hand_over(installation, folder.data)
            command = [*program(installation), "--bootstrap", f"--datadir={folder.inside}/data"]
            _run([*command, "--skip-networking"], installation, _system_tables(installation))
    hand_over(installation, data)


def ensure(installation: Installation, make: Callable[[], None]) -> None:
    """Call ``make``, under a lock, if the server has no template yet."""
    if not installation.template.exists():
        with cache.locked(f"{installation.spec.name}.template"):
            if not installation.template.exists():
                make()


def keep(installation: Installation, folder: Folder) -> None:
    """Turn the data directory of a server that was shut down cleanly into the template."""
    with cache.made_whole(installation.template) as scratch:
        _copy(f"{folder.data}/.", scratch)


def copy(installation: Installation, folder: Folder, arguments: list[str]) -> None:
    """Copy the template for a server that will be started with ``arguments``."""
    _copy(str(installation.template), folder.data)
    if installation.spec.version.startswith("5.5") and "innodb-log-file-size" in " ".join(arguments):
        for log in folder.data.glob("ib_logfile*"):
            log.unlink()  # 5.5 refuses logs of a different size; after a clean shutdown, logs are not needed


def _copy(source: str, target: object) -> None:
    run(["cp", "--archive", "-H", "--reflink=auto", "--sparse=auto", source, str(target)], cwd=cache.root())


def _install_db(installation: Installation, folder: Folder) -> list[str]:
    basedir = installation.home / installation.spec.basedir
    script = next(basedir.glob("*/mariadb-install-db"))  # in bin or in scripts
    return [
        str(script),
        "--no-defaults",
        f"--basedir={basedir}",
        f"--datadir={folder.data}",
        "--user=root",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--skip-name-resolve",
    ]


def _system_tables(installation: Installation) -> str:
    """Return the SQL that mariadb-install-db sends to ``--bootstrap``; the script itself must run as root."""
    shared = installation.home / installation.spec.basedir / "share"
    prefix = next(
        name for name in ("mysql", "mariadb") if (shared / name / f"{name}_{_SYSTEM_TABLES[0]}.sql").exists()
    )
    parts = ((shared / prefix / f"{prefix}_{name}.sql").read_text() for name in _SYSTEM_TABLES)
    return "\n".join(("CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket=NULL;", *parts))


def _run(command: list[str], installation: Installation, sql: str = "") -> None:
    result = subprocess.run(
        command, input=sql, env=installation.environment, capture_output=True, text=True, timeout=_TIMEOUT,
        check=False, cwd="/",
    )  # fmt: skip
    if result.returncode != 0:
        output = result.stdout + result.stderr
        raise ServerError(f"{installation.spec.name}: could not initialise a data directory\n{output}")
