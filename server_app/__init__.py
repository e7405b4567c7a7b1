"""Orchestration: the ServerApp, evaluation, checkpoints, results and the command line."""
