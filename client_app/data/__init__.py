"""A node's clients, their data, and the owner's policy."""
