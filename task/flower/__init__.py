"""Uses of Flower's private names, by all parts of the app."""
