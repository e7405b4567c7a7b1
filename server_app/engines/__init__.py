"""What a run is driven by: Flower's simulation, forked workers, a local federation."""
