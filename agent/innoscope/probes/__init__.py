"""Choose, locate, attach and read uprobes, safely and within a cost budget."""
