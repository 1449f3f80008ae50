"""The two long-lived processes: the privileged sensor and the agent that serves HTTP."""
