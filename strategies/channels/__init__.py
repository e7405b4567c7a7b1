"""Channels of features that replace the plain exchange of a phase."""
