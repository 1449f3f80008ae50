"""One function of a server on demand: its rate, how long it takes, who calls it, with what."""
