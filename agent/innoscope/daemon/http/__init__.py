"""HTTP server with TLS and basic authentication, and the files of the live page."""
