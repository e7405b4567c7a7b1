"""Homomorphic encryption: sums of ciphertexts that only the nodes' key decrypts."""
