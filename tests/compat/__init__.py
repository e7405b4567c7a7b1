"""The app on other versions of Flower, `make compat`, and on other Pythons and torches, `make pythons`."""
