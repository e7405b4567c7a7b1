"""Which clients train in a round, and how long they would take."""
