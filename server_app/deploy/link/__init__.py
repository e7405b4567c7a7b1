"""The server's machine: its processes, its queue of jobs, its state."""
