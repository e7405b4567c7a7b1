"""Which nodes are online and which clients they host."""
