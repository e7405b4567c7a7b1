"""Many runs as one experiment: their points, a queue on disk, and what comes of all of them."""
