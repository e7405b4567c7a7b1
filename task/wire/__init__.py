"""Messages: how they are packed, read, bounded and checked."""
