"""A Flower app with the habits of the quickstart, for comparison: W1's model, data and rounds.

torchvision in the client's module, ``DataLoader``, ``torch.optim.SGD``, ``ArrayRecord(state_dict)`` and
Flower's own ``FedAvg``; one virtual node per client. Written for this purpose; no code is copied.
"""
