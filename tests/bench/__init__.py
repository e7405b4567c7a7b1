"""What Bouquet costs, as ratios within one run: ``make bench``, or ``python -m tests.bench --help``.

===============  ==========================================================================  ========
benchmark        ratio                                                                       target
===============  ==========================================================================  ========
``w1-round``     a round of ``bouquet run`` : the plainest loop on both cores, 2NN           1.25
``w2-round``     the same with the CNN                                                       1.10
``first-round``  start of the command to the end of round 1 : Flower's stock quickstart      0.60
``population``   a round with up to 100,000 clients : with 100, ten of them training         1.20
``fold``         the server's work on one reply : reading its bytes once                     -
``memory``       peak of all processes of a run : of the stock app's                         -
===============  ==========================================================================  ========

Nothing is asserted: a reading on a busy machine says so and stands beside its target. Data are MNIST if
there is any (``data.py``). Seconds of Bouquet's rounds come from its own ``rounds.jsonl``.
"""
