"""Client side: local data, local solvers, and the state that a client keeps."""
