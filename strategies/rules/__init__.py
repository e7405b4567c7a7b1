"""One file per server rule, and the arithmetic that several share.

The examples in the docstrings use the names of their module, and ``np``, ``Config``,
``AggregatedReplies`` and ``ServerState``.
"""
