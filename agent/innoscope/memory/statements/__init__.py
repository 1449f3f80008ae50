"""Find the statement that each thread executes, in the server's memory."""
