"""One run of the ServerApp: its folder's name and lock, records, checkpoints, progress, evaluation."""
