"""A client's half of classical models."""
