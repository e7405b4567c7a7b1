"""What follows from a run's keys: its contract, its model, whether its parts fit together."""
