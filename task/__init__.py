"""Shared by server and clients: everything that both halves of an algorithm must agree on."""
