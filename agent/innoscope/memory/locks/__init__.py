"""Find the owners of locks in a server's memory."""
