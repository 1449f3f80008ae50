"""Find the statement that each thread is executing, in the server's memory."""
