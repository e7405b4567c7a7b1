"""Processes, ports and limits of one machine."""
