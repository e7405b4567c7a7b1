"""Files: written atomically, for their owner alone."""
