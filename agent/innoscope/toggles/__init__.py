"""Changing a live server: planned, checked, journalled, verified, undone. The daemon never imports this."""
