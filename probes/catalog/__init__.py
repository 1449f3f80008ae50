"""What is known of each server generation, as data."""
