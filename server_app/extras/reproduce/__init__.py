"""Published tables, cell by cell: definitions, finished runs, and our values next to the published ones."""
