"""Extras, imported only when used: audits, verification, published tables, the monitor."""
