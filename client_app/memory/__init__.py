"""Client state between rounds: durable files, their versions and locks."""
