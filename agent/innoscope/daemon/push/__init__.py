"""Push stacks as pprof profiles to a profile store for many hosts: Pyroscope or Parca."""
