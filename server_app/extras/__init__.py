"""What most users never start, imported only when asked for: audits, verification, tables, the monitor."""
