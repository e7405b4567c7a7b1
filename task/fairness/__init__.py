"""A model's figures by groups of people: exact counts, which of them may be shown, and rates."""
