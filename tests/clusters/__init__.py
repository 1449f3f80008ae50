"""Clusters of three test servers on the loopback address: Galera and Group Replication."""

from clusters.galera import GaleraCluster

__all__ = ["GaleraCluster"]
