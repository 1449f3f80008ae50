"""Profiles of a server over some seconds: its CPU time, or what its threads wait for, by stack."""
