"""Getting messages through: waiting for replies, limits on their size, the packed form."""
