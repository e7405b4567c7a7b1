"""Classical models whose result over sites is that of the pooled rows: mathematics without messages."""
