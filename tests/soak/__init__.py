"""A long run under steady faults: ``python -m tests.soak`` (``make soak``)."""
