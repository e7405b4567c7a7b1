"""Client side: local data, local solvers, client state."""
