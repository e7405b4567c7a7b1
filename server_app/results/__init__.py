"""Result folders: what is in them, their summary, report and comparison."""
