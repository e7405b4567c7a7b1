"""THE CATALOGUE: one entry per algorithm. Read this first.

An entry names the paper, the server rule (``strategies/``), the client half (``client_app/solvers/``)
and the contract between them: which array records and scalars go **down** with every training message,
which come **up**, how each upward record is reduced, and what the client **keeps** between rounds. It is
the registry, the privacy sheet (nothing else leaves a client), the source of the README's table and the
parameter list of the tests.

Algorithms that train one global model stand here, the robust rules in `task.spec.robust`, personalised
algorithms and their baselines in `task.spec.personalised`. `task.spec.entry` says what an entry consists of;
its defaults are FedAvg's.

A downward record other than ``arrays`` is the field of that name of the rule's server state.

Every message also carries the common fields: down ``server-round``, ``run`` (the run's identity), ``lr``
(eta_t of this round) and, to nodes that host several clients, ``clients`` and ``epochs``; up
``num-examples`` and ``train-loss``. A scalar's range stands with it; the gate of `task.wire.checks` enforces
it.
"""

from collections.abc import Mapping
from dataclasses import replace

from task.spec.entry import LI_PROX, MCMAHAN, Algorithm, Paper
from task.spec.personalised import PERSONAL
from task.spec.record import BUFFERS, COLUMNS, MODEL_DOWN, MODEL_UP, PARAMETERS, SHARED, Record, Scalar
from task.spec.robust import ROBUST

_REDDI = Paper(
    "Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan",
    2021,
    "Adaptive Federated Optimization",
    "2003.00295",
    "Algorithm 2",
)

_KONECNY = Paper(
    "Konečný, McMahan, Ramage, Richtárik",
    2016,
    "Federated Optimization: Distributed Machine Learning for On-Device Intelligence",
    "1610.02527",
    "Algorithm 4 with S_k = A = I",
)
_KONECNY_SPARSE = replace(_KONECNY, where="Algorithm 4 with S_k and A")
_FULL_GRADIENT = Record("gradient", PARAMETERS, "g_k, full-batch gradient of F_k at w^t", of="all")

_COHORT_GRADIENT = Record("gradient", PARAMETERS, "g, full gradient of the cohort at w^t")

_LI_FAIR = Paper(
    "Li, Sanjabi, Beirami, Smith", 2020, "Fair Resource Allocation in Federated Learning", "1905.10497", ""
)
_REFERENCE_LOSS = Scalar("reference-loss", "F_ref, largest loss of the last round, a unit that cancels")
_LOSS_BEFORE = Scalar("loss-before", "F_k(w^t), mean loss of the received model", low=0)
_WORST_LOSS = replace(_LOSS_BEFORE, reduce="max")
# Far above what an honest client reaches, far below what would swallow the others' sum in float64.
_LIPSCHITZ = Scalar(
    "lipschitz",
    "h_k / (L F_ref^q) = a_k (1 + q eta |Dw_k|^2 / F_k(w^t))",
    low=0,
    high=2.0**50,
    reduce="sum",
)


def _adaptive(name: str, title: str, neutral: Mapping[str, float]) -> Algorithm:
    """Return an adaptive server rule of Reddi et al.; the clients do as in FedAvg."""
    return Algorithm(name, title, _REDDI, neutral=neutral)


_GLOBAL: dict[str, Algorithm] = {
    "adaptive-tau": Algorithm(
        name="adaptive-tau",
        title="Adaptive local steps",
        paper=Paper(
            "Wang, Tuor, Salonidis, Leung, Makaya, He, Chan",
            2019,
            "Adaptive Federated Learning in Resource Constrained Edge Computing Systems",
            "1804.05271",
            "Algorithms 2 and 3",
        ),
        solver="adaptive-tau",
        up=(
            MODEL_UP,
            Record(
                "gradient", PARAMETERS, "grad F_k(w^t) on the round's first minibatch", "collect", of="batch"
            ),
        ),
        down_scalars=(Scalar("local-steps", "tau, local steps of the round"),),
        up_scalars=(
            Scalar(
                "rho",
                "|F_k(w_k) - F_k(w^t)| / |w_k - w^t|, w_k of the client's last round; 0 = unknown",
                low=0,
                reduce="collect",
            ),
            Scalar(
                "beta", "|grad F_k(w_k) - grad F_k(w^t)| / |w_k - w^t|; 0 = unknown", low=0, reduce="collect"
            ),
            _LOSS_BEFORE,
            Scalar(
                "step-seconds",
                "c_k, measured seconds of a local step; 0 = not measured",
                low=0,
                high=1e6,
                reduce="max",
            ),
        ),
        keeps=(Record("local-model", PARAMETERS, "w_k, local model at the end of the client's last round"),),
        neutral={
            "adaptive-tau.tau-max": 1,
            "adaptive-tau.budget": 1e9,
            "adaptive-tau.resource": "model",
            "local-steps": 1,
        },
    ),
    # A huge tau drowns the sum of squares: sqrt(v) + tau = 2 tau = eta.
    "fedadagrad": _adaptive(
        "fedadagrad",
        "FedAdagrad",
        {"fedopt.server-lr": 2e9, "fedopt.tau": 1e9, "fedopt.adagrad-beta1": 0.0},
    ),
    # v stays at tau^2 and sqrt(v) + tau at 1.
    "fedadam": _adaptive(
        "fedadam",
        "FedAdam",
        {"fedopt.server-lr": 1.0, "fedopt.tau": 0.5, "fedopt.beta1": 0.0, "fedopt.beta2": 1 - 2**-53},
    ),
    "fedatt": Algorithm(
        name="fedatt",
        title="FedAtt",
        paper=Paper(
            "Ji, Pan, Long, Li, Jiang, Huang",
            2019,
            "Learning Private Neural Language Modeling with Attentive Aggregation",
            "1812.07108",
            "attentive aggregation",
        ),
        up=(replace(MODEL_UP, reduce="collect"),),
        weight="uniform",
        neutral={"fedatt.epsilon": 1.0, "fedatt.temperature": 1e30},
        equal_sizes=True,
        biased="attention weighs a client by its distance from the server, not by its examples",
    ),
    "fedavg": Algorithm(
        name="fedavg",
        title="FedAvg",
        paper=MCMAHAN,
    ),
    "fedavgm": Algorithm(
        name="fedavgm",
        title="FedAvgM",
        paper=Paper(
            "Hsu, Qi, Brown",
            2019,
            "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
            "1909.06335",
            "server momentum",
        ),
        neutral={"fedavgm.server-lr": 1.0, "fedavgm.momentum": 0.0},
    ),
    "feddc": Algorithm(
        name="feddc",
        title="FedDC",
        paper=Paper(
            "Gao, Fu, Li, Chen, Xu, Xu",
            2022,
            "FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction",
            "2203.11751",
            "Algorithm 1",
        ),
        solver="feddc",
        down=(MODEL_DOWN, Record("gradient", PARAMETERS, "g, mean of v_k g_k over all clients")),
        up=(MODEL_UP, Record("gradient-delta", PARAMETERS, "v_k (g_k^+ - g_k), change of v_k g_k")),
        down_scalars=(Scalar("mean-examples", "n / K, mean examples of the clients, unit of v_k"),),
        keeps=(
            Record("drift", PARAMETERS, "h_k, sum of the client's own w_k - w^t"),
            Record("gradient", PARAMETERS, "g_k, the client's gradient state"),
        ),
        weight="uniform",
        no_neutral="alpha = 0 leaves the corrections of gradient and drift",
    ),
    "feddyn": Algorithm(
        name="feddyn",
        title="FedDyn",
        paper=Paper(
            "Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama",
            2021,
            "Federated Learning Based on Dynamic Regularization",
            "2111.04263",
            "Algorithm 1",
        ),
        solver="feddyn",
        keeps=(Record("gradient", PARAMETERS, "g_k, gradient of L_k at the client's last model"),),
        weight="uniform",
        neutral={"feddyn.alpha": 0.0},
        equal_sizes=True,
    ),
    "fedexp": Algorithm(
        name="fedexp",
        title="FedExP",
        paper=Paper(
            "Jhunjhunwala, Wang, Joshi",
            2023,
            "FedExP: Speeding Up Federated Averaging via Extrapolation",
            "2301.09604",
            "Algorithm 1",
        ),
        solver="fedexp",
        up_scalars=(
            Scalar("square-norm", "|Delta_k|^2 = |w_k - w^t|^2, parameters only", low=0, high=2.0**50),
        ),
        weight="uniform",
        neutral={"fedexp.epsilon": 1e30},
        equal_sizes=True,
        settles=False,
        biased="near the optimum updates cancel in the mean, not in the norms; small epsilons make it swing",
    ),
    "fednova": Algorithm(
        name="fednova",
        title="FedNova",
        paper=Paper(
            "Wang, Liu, Liang, Joshi, Poor",
            2020,
            "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
            "2007.07481",
            "section 5",
        ),
        solver="fednova",
        up=(
            Record(
                "update",
                SHARED,
                "(w_k - w^t) / |a_k|_1 of the parameters; buffers as they are",
                base="arrays",
                per="step-weight",
            ),
        ),
        # The server also holds each client to the steps that it was asked for (`strategies.rules.fednova`).
        up_scalars=(
            Scalar(
                "step-weight", "|a_k|_1, weight of the local steps: tau_k of plain SGD", low=1e-9, high=1e9
            ),
        ),
        neutral={"local-steps": 3, "fednova.mu": 0.0},
    ),
    "fedprox": Algorithm(
        name="fedprox",
        title="FedProx",
        paper=LI_PROX,
        solver="fedprox",
        down_scalars=(Scalar("proximal-mu", "mu of the proximal term mu/2 |w - w^t|^2"),),
        up_scalars=(
            Scalar("gamma", "gamma_k^t, inexactness |grad h(w_k; w^t)| / |grad F_k(w^t)|", False, low=0),
            replace(_LOSS_BEFORE, required=False),
        ),
        neutral={"fedprox.mu": 0.0},
    ),
    "fedsgd": Algorithm(
        name="fedsgd",
        title="FedSGD",
        paper=MCMAHAN,
        solver="fedsgd",
        up=(_FULL_GRADIENT,),
        neutral={"local-epochs": 1, "batch-size": 0},
    ),
    "fsvrg": Algorithm(
        name="fsvrg",
        title="FSVRG",
        paper=_KONECNY,
        solver="fsvrg",
        phases={
            "gradient": Algorithm(
                name="fsvrg",
                title="FSVRG, full gradients",
                paper=_KONECNY,
                solver="gradient",
                up=(_FULL_GRADIENT,),
            )
        },
        down=(MODEL_DOWN, _COHORT_GRADIENT),
        neutral={"local-epochs": 1, "batch-size": 0},
    ),
    "fsvrg-sparse": Algorithm(
        name="fsvrg-sparse",
        title="FSVRG for sparse features",
        paper=_KONECNY_SPARSE,
        solver="fsvrg-sparse",
        phases={
            "gradient": Algorithm(
                name="fsvrg-sparse",
                title="FSVRG for sparse features, full gradients and counts",
                paper=_KONECNY_SPARSE,
                solver="feature-counts",
                up=(
                    _FULL_GRADIENT,
                    Record(
                        "frequency",
                        COLUMNS,
                        "phi_k^j, share of examples with a non-zero feature j",
                        of="all",
                    ),
                    Record(
                        "presence",
                        COLUMNS,
                        "1/n_k if the client has a non-zero feature j, else 0",
                        "sum",
                        of="all",
                    ),
                ),
            )
        },
        down=(
            MODEL_DOWN,
            _COHORT_GRADIENT,
            Record("frequency", COLUMNS, "phi^j, share of the cohort's examples with a non-zero feature j"),
        ),
        neutral={"local-epochs": 1, "batch-size": 0},
    ),
    "qfedavg": Algorithm(
        name="qfedavg",
        title="q-FedAvg",
        paper=replace(_LI_FAIR, where="Algorithm 2"),
        solver="qfedavg",
        up=(
            Record("delta", PARAMETERS, "a_k (w_k - w^t), a_k = (F_k(w^t) / F_ref)^q", "sum"),
            Record("buffers", BUFFERS, "buffers of the local model w_k", base="arrays"),
        ),
        down_scalars=(_REFERENCE_LOSS,),
        up_scalars=(_WORST_LOSS, _LIPSCHITZ),
        weight="uniform",
        neutral={"qffl.q": 0.0},
        equal_sizes=True,
        biased="q > 0 weighs a client by its loss: the optimum is that of sum F_k^(q+1)",
    ),
    "qfedsgd": Algorithm(
        name="qfedsgd",
        title="q-FedSGD",
        paper=replace(_LI_FAIR, where="Algorithm 1"),
        solver="qfedsgd",
        up=(
            Record("gradient", PARAMETERS, "a_k grad F_k(w^t), a_k = (F_k(w^t) / F_ref)^q", "sum", of="all"),
        ),
        down_scalars=(_REFERENCE_LOSS,),
        up_scalars=(_WORST_LOSS, _LIPSCHITZ),
        weight="uniform",
        neutral={"qffl.q": 0.0, "local-epochs": 1, "batch-size": 0},
        equal_sizes=True,
        biased="q > 0 weighs a client by its loss: the optimum is that of sum F_k^(q+1)",
    ),
    "scaffold": Algorithm(
        name="scaffold",
        title="SCAFFOLD",
        paper=Paper(
            "Karimireddy, Kale, Mohri, Reddi, Stich, Suresh",
            2020,
            "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
            "1910.06378",
            "Algorithm 1",
        ),
        solver="scaffold",
        down=(MODEL_DOWN, Record("control", PARAMETERS, "c, the server's control variate")),
        up=(
            MODEL_UP,
            Record("control-delta", PARAMETERS, "c_i^+ - c_i, change of the client's control variate"),
        ),
        keeps=(Record("control", PARAMETERS, "c_i, the client's control variate"),),
        weight="uniform",
        neutral={"local-epochs": 1, "batch-size": 0, "fraction-train": 1.0},
        equal_sizes=True,
    ),
    "fedyogi": _adaptive(
        "fedyogi",
        "FedYogi",
        {"fedopt.server-lr": 1.0, "fedopt.tau": 0.5, "fedopt.beta1": 0.0, "fedopt.beta2": 1 - 2**-53},
    ),
}

ALGORITHMS: dict[str, Algorithm] = _GLOBAL | ROBUST | PERSONAL
