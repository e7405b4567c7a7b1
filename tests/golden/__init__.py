"""Golden hashes: rows of short runs of every algorithm, to show that a change alters no result."""
