"""The unprivileged process: SQL, the hour of profiles, HTTP. It imports no code that can change a server."""
