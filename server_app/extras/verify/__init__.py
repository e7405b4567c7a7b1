"""Check a run by its transcript: the chain, the signatures, the sums, the rule, and a node's own receipts."""
