"""Find servers on this host and describe them: identity, version, modules, symbols, SQL."""
