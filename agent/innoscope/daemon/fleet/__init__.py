"""Read the incident files of many agents over HTTP."""
