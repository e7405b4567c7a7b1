"""Robust aggregation with Bouquet's strategies."""
