"""A server in a Kubernetes pod is named after its namespace, pod and container."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.daemon.protocol.server_names import ServerNames
from innoscope.target.data_directory import DataDirectory
from innoscope.target.pods import PodContainer, Pods
from innoscope.target.proc import ProcFs
from unit.snapshots import target

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND = "1a2b3c4d5e6f" + "0" * 52, "f0f1f2f3f4f5" + "9" * 52
HOME = DataDirectory(1, 100, 999)


def link(directory: Path, name: str) -> None:
    (directory / name).symlink_to("/var/log/pods/does/not/exist")


@pytest.fixture
def names(tmp_path: Path) -> ServerNames:
    return ServerNames({}, ProcFs(tmp_path), pods=Pods(tmp_path))


def test_the_link_names_namespace_pod_and_container(tmp_path: Path) -> None:
    link(tmp_path, f"shop-mysql-0_prod-eu_mysql-{FIRST}.log")
    link(tmp_path, f"audit.db-1_prod-eu_side-car-{SECOND}.log")

    assert Pods(tmp_path).find(FIRST[:12]) == PodContainer("prod-eu", "shop-mysql-0", "mysql")
    assert str(Pods(tmp_path).find(SECOND[:12])) == "prod-eu/audit.db-1/side-car"
    assert Pods(tmp_path).find("0" * 12) is None


@pytest.mark.parametrize(
    "name",
    [
        f"pod_namespace-{FIRST}.log",
        f"pod_namespace_container-{FIRST}",
        f"pod_namespace_container-{FIRST[:60]}.log",
        f"pod_name/space_container-{FIRST}.log".replace("/", "\n"),
        f"Pod_namespace_container-{FIRST}.log",
        f"{'p' * 254}_n_c-{FIRST}.log"[:255],
        "README",
    ],
)
def test_other_files_are_ignored(tmp_path: Path, name: str) -> None:
    link(tmp_path, name)

    assert Pods(tmp_path).find(FIRST[:12]) is None


def test_hosts_without_kubernetes_have_no_pods(tmp_path: Path) -> None:
    pods = Pods(tmp_path / "missing")

    assert not pods.exist
    assert pods.find(FIRST[:12]) is None


def test_a_list_of_namespaces_is_no_pod(tmp_path: Path) -> None:
    link(tmp_path, f"pod_namespace_container-{FIRST}.log")

    assert Pods(tmp_path).find("mnt,pid") is None
    assert Pods(tmp_path).find("") is None


def test_pods_with_the_same_port_have_different_names(tmp_path: Path, names: ServerNames) -> None:
    link(tmp_path, f"shop-0_prod_mysql-{FIRST}.log")
    link(tmp_path, f"shop-0_test_mysql-{SECOND}.log")
    first = names.give(target(pid=1, container=FIRST[:12]), ())
    second = names.give(target(pid=2, container=SECOND[:12]), {first})

    assert (first, second) == ("prod/shop-0/mysql", "test/shop-0/mysql")


def test_two_servers_in_one_container_do_not_share_the_name(tmp_path: Path, names: ServerNames) -> None:
    link(tmp_path, f"shop-0_prod_mysql-{FIRST}.log")
    first = names.give(target(pid=1, container=FIRST[:12]), ())

    assert names.give(target(pid=2, container=FIRST[:12]), {first}) == "3306"


def test_a_server_is_renamed_once_the_kubelet_has_created_the_link(
    tmp_path: Path, names: ServerNames
) -> None:
    server = target(pid=1, container=FIRST[:12])

    assert names.give(server, (), HOME) == "3306"
    assert not names.is_final(server)
    link(tmp_path, f"shop-0_prod_mysql-{FIRST}.log")
    assert names.give(server, (), HOME) == "prod/shop-0/mysql"
    assert names.is_final(server)


def test_a_new_pod_on_the_same_volume_has_its_own_name(tmp_path: Path, names: ServerNames) -> None:
    link(tmp_path, f"shop-6d5_prod_mysql-{FIRST}.log")
    link(tmp_path, f"shop-7f8_prod_mysql-{SECOND}.log")
    names.give(target(pid=1, container=FIRST[:12]), (), HOME)

    assert names.give(target(pid=2, container=SECOND[:12]), (), HOME) == "prod/shop-7f8/mysql"


def test_a_configured_name_overrides_the_pod(tmp_path: Path) -> None:
    link(tmp_path, f"shop-0_prod_mysql-{FIRST}.log")
    names = ServerNames({"1": "shop"}, ProcFs(tmp_path), pods=Pods(tmp_path))

    assert names.give(target(pid=1, container=FIRST[:12]), ()) == "shop"
