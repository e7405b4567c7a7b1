"""What the app uses of Flower that is not public, wherever it runs."""
