"""What needs a GPU: one script, `run.sh`, for a machine that is at hand for minutes."""
