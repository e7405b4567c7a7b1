"""The one training loop and the programs that compute its gradients."""
