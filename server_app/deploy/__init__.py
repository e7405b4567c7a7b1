"""A federation on machines of its own: provisioning, the server machine, the nodes."""
