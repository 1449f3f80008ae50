"""Build the container image from the .deb."""
