"""Low-rank adapters (LoRA): their names, and the means of several clients' pairs of factors."""
