"""Real stacks with the wait class each must get."""
