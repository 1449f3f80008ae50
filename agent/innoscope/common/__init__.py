"""Code shared by all packages: errors, cache, output, logging, threads."""
