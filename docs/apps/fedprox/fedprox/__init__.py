"""FedProx with Bouquet's strategy."""
