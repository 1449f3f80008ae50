"""Clusters of three test servers on the loopback address: Galera and Group Replication."""

from clusters.galera import GaleraCluster
from clusters.group_replication import ReplicationGroup
from clusters.subjects import CLUSTERS, first_node, server_of

__all__ = ["CLUSTERS", "GaleraCluster", "ReplicationGroup", "first_node", "server_of"]
