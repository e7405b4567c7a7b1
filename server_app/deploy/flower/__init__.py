"""What runs inside Flower's own processes, or speaks to them in ways that Flower does not document."""
