"""Every run-config key, how keys are read, and which of them a run reads."""
