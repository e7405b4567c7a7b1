"""Many runs as one experiment: their points, a queue on disk, and their results."""
