"""The active session history: samples of busy threads, their files, and reports (docs/history.md)."""
