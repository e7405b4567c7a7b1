"""What Bouquet costs, as ratios within one run: ``make bench``, or ``python -m tests.bench --help``.

=====================  ==================================================================  ========
benchmark              ratio                                                               target
=====================  ==================================================================  ========
``w1-round``           a round of ``bouquet run`` : the plainest loop on both cores, 2NN   0.6
``w2-round``           the same with the CNN                                               1.0
``steps``              CPU time of a step of the CNN, of the character LSTM : plain PyTorch's  -, -
``w1-20-rounds``       a whole command of 20 rounds : the faster of plain loop and FedJAX  1.0
``first-round``        start of the command to the end of round 1, W1 and ``make demo`` :  0.4
                       Flower's stock quickstart
``deployed``           three nodes, TLS and node keys, first round and the others : Flower's  15 s, 4 s
                       own processes; the targets are of ours alone
``scale``              fifty nodes, TLS and node keys: the last rounds of 500 : the first,   1.1
                       the link's memory and database likewise                             1.2
``population-link``    three nodes that share 1,000,000 clients, a round with 10 : 10 of   1.1
                       100; round 1 with the registration, memory likewise                 1.2
``idle-node-memory``   memory of one command's nodes, for each further node                60 MB
``population``         a round with 10 of 1,000,000 clients : 10 of 100                    1.1
``population-1000``    a round with 1,000 of 1,000,000 clients : 1,000 of 1,000            1.1
``population-memory``  peak of all processes with 1,000,000 clients - with few             100 MB
``state-memory``       peak with FedALA's state of 1,000 clients - FedAvg's                200 MB
``fold``               the server's work on one reply : reading its bytes once             1.5
                       what it keeps of 200 replies : of 10                                1.1
``parameters``         memory and CPU time for each parameter of a model : a plain loop's;  -
                       ours alone is wanted below 36.7 bytes and 20 ns                     -
``codecs``             encoding an update of 1.66 M parameters : reading it once;          30
                       decoding, checking and folding it, 1/100 of the entries or fewer    3
``secagg``             a mask of a node : adding its partial from the cache; the server   2, -
``he``                 encryption and decryption : a node's masks; the server's round      -, -
``coded``              a round with codec.up = stc : without; other codes likewise        1.1, -
``memory``             peak of all processes of a run : of the stock app's                 0.5
``server-update``      a rule's step on 50 clients of 1.66 M parameters : reading them     2, 6, 10
``patches``            a round with secure aggregation on three nodes with a change to      -
                       Flower : without it; one row for each change
``threads``            a round with actors x threads : 1 x 1                               -
``portable``           a step of SGD with portable kernels : with the processor's own           -
``stack``              a round with so many clients in one program : one at a time         -
``gpu``                a round of 100 clients, all in one program : one at a time, 2NN;    0.1
                       CNN                                                                 0.33
=====================  ==================================================================  ========

Nothing is asserted: a reading on a busy machine says so and stands next to its target. Each ratio is the
median over pairs of runs, five at least, that took turns on the same machine. Data are MNIST if there is
any (``data.py``). A round lasts from one line of its ``rounds.jsonl`` to the next.

``make bench-peers`` runs the same work in other people's simulators, see `tests.bench.peers`.
"""
