"""The engines that drive a run: a simulation with forked workers, a local federation."""
