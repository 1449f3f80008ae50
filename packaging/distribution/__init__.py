"""Makes the .deb and the .rpm: `make packages`. Both are made of one staged tree and one description."""
