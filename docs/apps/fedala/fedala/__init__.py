"""FedALA with Bouquet's FedAvg."""
