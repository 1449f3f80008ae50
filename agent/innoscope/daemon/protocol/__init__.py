"""The protocol between the sensor and the agent, and its client."""
