"""Result folders: content, summary, report and comparison."""
