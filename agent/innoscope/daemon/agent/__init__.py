"""The unprivileged process, which queries servers over SQL, stores an hour of profiles and serves HTTP.

The agent imports no code that can change a server.
"""
