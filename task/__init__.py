"""Shared ground: what the server half and the client half of an algorithm must agree on."""
