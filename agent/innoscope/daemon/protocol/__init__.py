"""The protocol between sensor and agent, and its client."""
