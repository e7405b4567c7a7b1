"""The app on another version of Flower than the pinned one: `make compat`, with a Python of its own."""
