"""Send profiles to Pyroscope or Parca, OTLP, notifications to a webhook, and incident files to a store."""
