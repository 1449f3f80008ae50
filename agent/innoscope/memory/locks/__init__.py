"""Read lock owners from a server's memory."""
