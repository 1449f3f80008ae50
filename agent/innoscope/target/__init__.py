"""Who we look at: the servers on this host, their identity, version, modules and symbols."""
