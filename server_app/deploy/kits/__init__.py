"""Kits: keys, certificates and settings for every machine of a federation."""
