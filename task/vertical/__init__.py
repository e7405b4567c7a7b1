"""Shared by the parties of vertical algorithms: the common rows, their order, their batches."""
