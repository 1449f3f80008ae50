"""A page for each alert: what it means, how to confirm it, what to do. The agent serves them at /runbooks."""
