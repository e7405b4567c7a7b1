"""Deployed federations: provisioning, the link (the server's machine), the nodes."""
