"""The privileged sensor, the agent that serves HTTP, their protocol, and the client for many agents."""
