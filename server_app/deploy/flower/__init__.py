"""What runs inside Flower's own processes, with every private name of Flower that this needs."""
