"""Find lock owners in a server's memory."""
