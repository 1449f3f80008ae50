"""The unprivileged process, which queries servers over SQL, stores profiles in memory and serves HTTP.

The agent imports no code that can change a server.
"""
