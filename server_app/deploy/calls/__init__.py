"""Calls between a link, its nodes and its users in Flower's protocols, without names of Flower's code."""
