"""The engines that drive a run: Flower's simulation with forked workers, a local federation."""
