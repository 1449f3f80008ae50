"""The privileged process: probes, snapshots, memory reads. The sensor listens only on a Unix socket."""
