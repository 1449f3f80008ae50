"""Real MySQL and MariaDB servers for the tests: fetch, start, wait until ready, stop, clean up.

>>> from servers import Server
>>> with Server("mysql-5.6.24", options={"innodb_buffer_pool_size": "64M"}) as server:  # doctest: +SKIP
...     server.pid, server.socket, server.version
"""

from servers.catalog import ADDED, NAMES, SERVERS, TRIED, Spec
from servers.errors import ServerError
from servers.fetch import Installation, fetch
from servers.keeper import Keeper
from servers.packages import ensure_commands, ensure_packages
from servers.server import Server, free_port

__all__ = [
    "ADDED",
    "NAMES",
    "SERVERS",
    "TRIED",
    "Installation",
    "Keeper",
    "Server",
    "ServerError",
    "Spec",
    "ensure_commands",
    "ensure_packages",
    "fetch",
    "free_port",
]
