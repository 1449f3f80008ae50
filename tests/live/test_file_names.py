"""The file names of databases and tables are decoded as the server encodes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.memory.locks.file_names import decoded

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import Server

#: Servers in which SQL can use the character set ``filename``. MySQL 5.7 and newer refuse it.
SERVERS = ["mysql-5.6.24", "mariadb-11.4.5"]
#: All letters that have codes of two characters, and many others.
CHARACTERS = [*range(0x20, 0x3000), *range(0xFF00, 0xFF60)]


@pytest.mark.parametrize("name", SERVERS)
def test_names_are_decoded_as_the_server_encodes_them(server: Callable[[str], Server], name: str) -> None:
    texts = [chr(one) for one in CHARACTERS if chr(one).isprintable()]
    columns = [f"CONVERT(CONVERT(_ucs2 X'{ord(one):04x}' USING filename) USING binary)" for one in texts]
    encoded = [
        value.decode()
        for start in range(0, len(columns), 1_000)
        for value in server(name).sql(f"SELECT {', '.join(columns[start : start + 1_000])}")[0]
    ]
    assert sum(len(one) == 3 for one in encoded) > 1_500
    assert [decoded(one) for one in encoded] == texts
