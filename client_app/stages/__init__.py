"""What stands between the received model and the solver, or the solver and its upload: ALA, attacks."""
