"""Check which features work on this host and its servers, and how to enable those that do not."""
