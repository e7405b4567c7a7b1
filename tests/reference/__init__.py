"""Slow references of the algorithms, one file each, written from the papers' pseudo-code only.

Plain NumPy in float64, loops where the paper has loops, no torch, no flwr and nothing from our own
packages, so that an error there cannot hide here. The models are softmax regression and one hidden layer of
ReLU, whose gradients are written out in `tests.reference.mlp`.

A file holds a `tests.reference.driver.Reference`: what one round computes, in the paper's symbols. The driver
gives it the rounds, and nothing is drawn at random: the test hands in the cohorts and batches that the real
implementation drew. A reference that names its algorithm and its `cases` is held to the app by
`tests.reference.test_pipeline`, with nothing else to register.
"""
