"""uprobes: select, place, attach and read them safely and within a cost budget."""
