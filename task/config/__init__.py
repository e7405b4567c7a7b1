"""The run-config keys: declarations, reading, and which of them a run reads."""
