"""Build the .deb and the .rpm (``make packages``) from one staged tree and common metadata."""
