"""Taking a model out of a run: loading it, predicting with it, exporting it."""
