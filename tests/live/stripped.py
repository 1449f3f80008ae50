"""Provide a server with separate debug information, as in distributions, and a debuginfod that serves it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING, Any, Final

from innoscope._native import elf_info
from servers import Installation, Keeper, Server, fetch, template
from servers.packages import ensure_packages
from servers.server import free_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_DEBUG_NAME: Final = "mariadbd.debug"

#: Maximum seconds until debuginfod has read 300 MB of debug information on a busy machine.
_SCAN_S: Final = 180


def awake(threads: Iterable[dict[str, Any]]) -> int:
    """Return the number of threads in SELECT SLEEP that are running, and thus have another wait class.

    Every five seconds, each of them checks its connection (Interruptible_wait in item_func.cc).
    """
    return sum(
        thread["state"] == "R"
        and any(frame["function"] == "Item_func_sleep::val_int" for frame in thread["frames"])
        for thread in threads
    )


class Split:
    """A stripped installation. Its debug file is in a directory that Innoscope does not search."""

    def __init__(self, name: str, folder: Path) -> None:
        original = fetch(name)
        self.debug = folder / "kept" / _DEBUG_NAME
        self.debug.parent.mkdir()
        self.installation = Installation(original.spec, folder / "server")
        self.installation.folder.mkdir()
        # copied, not linked: through links, the server would write into the cache
        template.ensure(original, lambda: Server(name)._make_template())
        copy = ["cp", "--archive", "--reflink=auto", "--sparse=auto"]
        subprocess.run([*copy, original.template, self.installation.template], check=True)
        subprocess.run(["cp", "-as", original.home, self.installation.home], check=True)
        binary = self.installation.mysqld
        binary.unlink()
        subprocess.run(["objcopy", "--only-keep-debug", original.mysqld, self.debug], check=True)
        link = f"--add-gnu-debuglink={self.debug}"
        subprocess.run(["objcopy", "--strip-all", link, original.mysqld, binary], check=True)
        build_id = elf_info(str(binary)).build_id
        assert build_id
        self.build_id = build_id

    def server(self) -> Server:
        """Return a server of this installation; it is not started yet."""
        server = Server(self.installation.spec.name)
        server.installation = self.installation
        return server

    @contextlib.contextmanager
    def by_build_id(self, folder: Path) -> Iterator[Path]:
        """Yield a directory with the debug file, laid out like /usr/lib/debug."""
        place = folder / ".build-id" / self.build_id[:2] / f"{self.build_id[2:]}.debug"
        place.parent.mkdir(parents=True)
        place.hardlink_to(self.debug)
        yield folder
        shutil.rmtree(folder)

    @contextlib.contextmanager
    def by_link(self) -> Iterator[None]:
        """Put the debug file next to the server, named as in ``.gnu_debuglink``, while the block runs."""
        place = self.installation.mysqld.with_name(_DEBUG_NAME)
        place.hardlink_to(self.debug)
        yield
        place.unlink()


@contextlib.contextmanager
def debuginfod(folder: Path, database: Path, build_id: str) -> Iterator[str]:
    """Serve the files of ``folder``; yield the URL on loopback once this build-id is available.

    Debian 12's debuginfod has no option for the address to listen on.
    """
    ensure_packages(["debuginfod"])
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = ["debuginfod", "-F", "-d", str(database), "-p", str(port), "-t", "0", str(folder)]
    with Keeper() as keeper, database.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        keeper.watch(process.pid)
        try:
            _wait_for(f"{url}/buildid/{build_id}/debuginfo", process)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the file is served. debuginfod does not support HEAD."""
    deadline = time.monotonic() + _SCAN_S
    while not _answers(url):
        assert process.poll() is None, "debuginfod has exited"
        assert time.monotonic() < deadline, "debuginfod does not find the file"
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=10).close()  # noqa: S310 - a URL on loopback
    except OSError:
        return False
    return True
