"""Attacks on runs, to measure what they reveal and whether privacy promises hold."""
