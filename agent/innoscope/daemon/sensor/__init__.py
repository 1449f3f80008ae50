"""The privileged process: probes, snapshots, memory reads. It listens on a Unix socket only."""
