"""Clusters of three test servers on the loopback address: Galera and Group Replication."""

from clusters.galera import GaleraCluster
from clusters.group_replication import ReplicationGroup

__all__ = ["GaleraCluster", "ReplicationGroup"]
