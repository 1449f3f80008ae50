"""The unprivileged process: SQL, the hour of profiles, HTTP. It never imports what can touch the server."""
