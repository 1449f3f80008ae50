"""/metrics, health and the landing page over HTTP, with TLS and basic auth."""
