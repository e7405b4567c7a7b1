"""What parties with other columns of the same people share: the common rows, their order, their batches."""
