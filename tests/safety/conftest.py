"""Provide two hosts, made of network namespaces, for tests that attack the agent over the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from safety.netspace import Host, two_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as found:
        yield found


@pytest.fixture(scope="module")
def here(hosts: tuple[Host, Host]) -> Host:
    return hosts[0]


@pytest.fixture(scope="module")
def there(hosts: tuple[Host, Host]) -> Host:
    return hosts[1]
