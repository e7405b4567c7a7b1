"""A node's machine: its processes, its data, what its owner allows."""
