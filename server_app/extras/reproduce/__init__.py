"""Published tables, cell by cell: what each cell is, which of its runs are there, and ours beside theirs."""
