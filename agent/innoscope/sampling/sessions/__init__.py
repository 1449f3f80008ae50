"""The active session history: samples of busy threads, their files, and reports on them (docs/history.md)."""
