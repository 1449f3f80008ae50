"""uprobes: which, where, at what cost; attached without harm, and never for longer than the budget allows."""
