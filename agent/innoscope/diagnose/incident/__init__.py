"""Incident files: what was seen of one server and judged, in one file that can be read anywhere."""
