"""The catalogue's algorithms whose clients share a direction, or train on another loss than their task's.

See `task.catalogue.algorithms`.
"""

from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.catalogue.papers import paper
from task.catalogue.record import MODEL_DOWN, MODEL_UP, PARAMETERS, Record, Scalar

FULL_GRADIENT = Record("gradient", PARAMETERS, "g_k, full-batch gradient of F_k at w^t", of="all")
COHORT_GRADIENT = Record("gradient", PARAMETERS, "g, full gradient of the cohort at w^t")
# The server also holds each client to the steps that it was asked for (`strategies.rules.fednova`).
STEP_WEIGHT = Scalar(
    "step-weight", "|a_k|_1, weight of the local steps: tau_k of plain SGD", low=1e-9, high=1e9
)
SQUARE_NORM = Scalar(
    "square-norm", "|Delta_k|^2 = |w_k - w^t|^2, of the w_k that is sent, parameters only", low=0,
    high=2.0**50, square_of="arrays",
)  # fmt: skip
# How signSGD differs from its paper.
COINS = (
    "Where a client's gradient is exactly 0, it votes by a fair coin, as a bit has no third value; in the "
    "paper it votes 0. So a parameter whose gradient is 0 at all clients, such as that of a pixel that no "
    "example uses, walks at random by eta_t a round, about eta sqrt(T) in T rounds. In the paper it stays. "
    "This does not change the loss as long as the gradient is 0."
)
_MIXED = "its steps mix a gradient with the momentum of all clients"
_MIME = paper("2008.03606")
_BY_EXAMPLES = (
    "The mean of the models, and c, weight the round's clients by n_k, as in FedAvg, so the optimum is that "
    "of the pooled data. The paper takes plain means, for an objective in which all clients count equally."
)
_MOMENTUM = Record("momentum", PARAMETERS, "m, the server's momentum, which stands still at the clients")

ENTRIES = (
    Algorithm(
        "fedacg", "FedACG", paper("2201.03172"),
        about="Clients start from a model that is moved ahead by the server's momentum.",
        solver="fedacg",
        down=(replace(MODEL_DOWN, meaning="y = w^t + lambda m^t, the model carried ahead"),),
        weight="uniform",
        neutral={"fedacg.lambda": 0.0, "fedacg.beta": 0.0},
        equal_sizes=True,
    ),
    Algorithm(
        "fedcm", "FedCM", paper("2106.10874"),
        about="Each local step mixes the client's gradient with the last round's mean direction.",
        solver="fedcm",
        sgd_only=_MIXED,
        down=(MODEL_DOWN, Record("momentum", PARAMETERS, "M_t, mean gradient along the last round's steps")),
        up_scalars=(STEP_WEIGHT,),
        weight="uniform",
        neutral={"fedcm.alpha": 1.0},
        equal_sizes=True,
    ),
    Algorithm(
        "fedlc", "FedLC", paper("2209.00189", "equation 8"),
        about="Calibrates each client's logits by its number of examples of each class.",
        classes="FedLC calibrates the logits of classes",
        rule="fedavg", takes_mean=True, solver="fedlc",
        neutral={"fedlc.tau": 0.0},
        biased="the calibrated loss has another optimum",
    ),
    Algorithm(
        "fedntd", "FedNTD", paper("2106.03097"),
        about="Distils the global model's outputs for all classes but the true one.",
        classes="FedNTD distils the classes other than the true one",
        rule="fedavg", takes_mean=True, solver="fedntd",
        neutral={"fedntd.beta": 0.0},
    ),
    Algorithm(
        "mime", "Mime", _MIME,
        about="Local steps use the server's momentum, and gradients corrected to those of all clients.",
        reads=("mime.",),
        differs=_BY_EXAMPLES,
        solver="mime",
        sgd_only=_MIXED,
        phases={
            "gradient": Algorithm(
                "mime", "Mime, full gradients", _MIME,
                solver="gradient",
                up=(FULL_GRADIENT,),
            )
        },
        down=(MODEL_DOWN, _MOMENTUM, COHORT_GRADIENT),
        neutral={"mime.beta": 0.0, "local-epochs": 1, "batch-size": 0},
    ),
    Algorithm(
        "mimelite", "MimeLite", _MIME,
        about="Local steps use the server's momentum, which stays constant while clients train.",
        reads=("mime.",),
        differs=_BY_EXAMPLES,
        solver="mimelite",
        sgd_only=_MIXED,
        down=(MODEL_DOWN, _MOMENTUM),
        up=(MODEL_UP, FULL_GRADIENT),
        neutral={"mime.beta": 0.0},
    ),
)  # fmt: skip
