"""What a client keeps between rounds: durable files, their versions and locks."""
