"""Sending the looks at servers to a store of profiles for many hosts, as pprof: Pyroscope or Parca."""
