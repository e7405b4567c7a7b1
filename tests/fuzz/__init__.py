"""Whole runs in which some nodes answer with mutated replies: what a run must bear, whatever comes.

A *case* is a number: from its seed come the algorithm, the form of the replies (plain, merged, packed), the
kind of message whose answers are mutated, and the mutations. `mutate` changes real replies of real clients,
`runs` plays a case through the ServerApp up to its report, `check` says what does not hold afterwards.

A case runs in this process, over the wire's bytes: what a node can say that Flower's protocol buffers cannot
carry (a truth value in a MetricRecord, an integer beyond 64 bits) is left out, and so are nodes that stay
silent, which `tests.strategies.test_faults` has. ``python -m tests.fuzz --help`` runs more cases.
"""
