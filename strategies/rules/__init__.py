"""One file per server rule, and the arithmetic that several share."""
