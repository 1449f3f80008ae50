"""Waiting for a stall: triggers, a recorder that knows the time before it, the incident file of both."""
