"""Slow references of the algorithms, one file each, written from the papers' pseudo-code only.

Plain NumPy in float64, loops where the paper has loops, no torch, no flwr and nothing from our own
packages, so that an error there cannot hide here. The model is softmax regression, whose gradient fits in
two lines (`tests.reference.fedsgd`).

A reference draws nothing at random. The test hands it what the real implementation drew:

* ``clients[k] = (X, y)``: X float [n_k, d], y integer [n_k], by client index k;
* ``selected[t - 1]``: indices of the cohort S_t of round t (rounds count from 1);
* ``batches(t, k, epoch)``: index arrays into client k's examples, one per step, epochs counting from 0.

``run`` returns one model ``(W [d, C], b [C])`` per round with the start in front: ``models[t]`` is w^t.
"""
