"""A node's machine: its processes, its data, its owner's policy."""
