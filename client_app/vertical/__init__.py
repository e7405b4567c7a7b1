"""A party's half of vertical algorithms: its rows and columns, their alignment, its part of the model."""
