"""Where samples come from: one module for each source, each run with a timeout by the runner."""
