"""THE CATALOGUE: one entry per algorithm. Read this first.

An entry names the paper, the server rule (``strategies/``), the client half (``client_app/solvers/``)
and the contract between them: which array records and scalars go **down** with every training message,
which come **up**, how each upward record is reduced, and what the client **keeps** between rounds. It is
the registry, the privacy sheet (nothing else leaves a client), the source of the README's tables and the
parameter list of the tests.

Algorithms that train one global model stand here and, where only the clients' steps differ, in
`task.catalogue.local_steps`; those that go by the clients' losses in `task.catalogue.fair`, the robust rules
in `task.catalogue.robust`, personalised algorithms and their baselines in `task.catalogue.personalised`,
those whose clients hold other columns of the same people in `task.catalogue.vertical`, classical models in
`task.catalogue.regressions`, `task.catalogue.multivariate`, `task.catalogue.statistics` and
`task.catalogue.survivals`, and boosted trees in `task.catalogue.trees`. Each module of this folder that
declares `ENTRIES` is found. `task.catalogue.entry` says what an entry consists of; its defaults are FedAvg's.

A downward record other than ``arrays`` is the field of that name of the rule's server state.

Every message also carries the common fields: down ``server-round``, ``run`` (the run's identity), ``lr``
(eta_t of this round) and, to nodes that host several clients, ``clients`` and ``epochs``; up
``num-examples`` and ``train-loss``. A scalar's range stands with it; the gate of `task.wire.checks` enforces
it.
"""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from task.catalogue.entry import LI_PROX, MCMAHAN, Algorithm
from task.catalogue.fair import LOSS_BEFORE
from task.catalogue.local_steps import (
    COHORT_GRADIENT,
    COINS,
    FULL_GRADIENT,
    SQUARE_NORM,
    STEP_WEIGHT,
)
from task.catalogue.papers import paper
from task.catalogue.record import (
    BUFFERS,
    COLUMNS,
    FREE,
    MODEL_DOWN,
    MODEL_UP,
    PARAMETERS,
    SHARED,
    Record,
    Scalar,
)

_REDDI = paper("2003.00295", "Algorithm 2")
_KONECNY = paper("1610.02527", "Algorithm 4 with S_k = A = I")
_KONECNY_SPARSE = replace(_KONECNY, where="Algorithm 4 with S_k and A")
_LI_FAIR = paper("1905.10497", "")
_REFERENCE_LOSS = Scalar("reference-loss", "F_ref, largest loss of the last round, a unit that cancels")
_WORST_LOSS = replace(LOSS_BEFORE, reduce="max")
# Far above what an honest client reaches, far below what would swallow the others' sum in float64.
_LIPSCHITZ = Scalar(
    "lipschitz", "h_k / (L F_ref^q) = a_k (1 + q eta |Dw_k|^2 / F_k(w^t))", low=0, high=2.0**50, reduce="sum"
)

_NODE_DOWN = Record("model", SHARED, "x_i, the client's own mixed model", to="each")

_VERSION_DOWN = Record("model", SHARED, "w^v, the version that was new when the client began", to="each")
_VERSION_UP = replace(MODEL_UP, meaning="w_k, w^v after local training", base="model", reduce="collect")

_NO_STEP = "its clients send one gradient and take no step"
_PATH = "its clients derive their mean gradient from the length of their steps"
_REDUCED = "its steps are variance-reduced gradients, and the rule sets their scale"

ENTRIES = (
    Algorithm(
        "adaptive-tau", "Adaptive local steps", paper("1804.05271", "Algorithms 2 and 3"),
        about="Chooses each round's number of local steps to make the most progress within a budget.",
        solver="adaptive-tau",
        sgd_only="its bound on the worth of a step holds for gradient steps",
        unclipped="its bound on the worth of a step holds for gradient steps",
        up=(
            MODEL_UP,
            Record(
                "gradient", PARAMETERS, "grad F_k(w^t) on the round's first minibatch", "collect", of="batch",
                exact=True,
            ),
        ),
        down_scalars=(Scalar("local-steps", "tau, local steps of the round"),),
        up_scalars=(
            Scalar(
                "rho", "|F_k(w_k) - F_k(w^t)| / |w_k - w^t|, w_k of the client's last round; 0 = unknown",
                low=0, reduce="collect",
            ),
            Scalar(
                "beta", "|grad F_k(w_k) - grad F_k(w^t)| / |w_k - w^t|; 0 = unknown", low=0, reduce="collect"
            ),
            LOSS_BEFORE,
            Scalar(
                "step-seconds", "c_k, measured seconds of a local step; 0 = not measured", low=0, high=1e6,
                reduce="max",
            ),
        ),
        keeps=(Record("local-model", PARAMETERS, "w_k, local model at the end of the client's last round"),),
        neutral={
            "adaptive-tau.tau-max": 1, "adaptive-tau.budget": 1e9, "adaptive-tau.resource": "model",
            "local-steps": 1,
        },
    ),
    Algorithm(
        "coop", "CO-OP", paper("10.7939/R32805C45", "asynchronous protocol"),
        about="Merges models as they arrive; clients too far behind start again, early ones train on.",
        differs="A client that trains on still uploads its model: the server stores it, with its age, and "
        "sends it back as the client's next start. If only some clients train at a time, such a client waits "
        "until it is drawn again. Written from others' descriptions of the thesis: bounds and weight "
        "are not checked against its text.",
        solver="versioned",
        down=(replace(_VERSION_DOWN, meaning="w^v as the client began, or its own w_k if it trains on"),),
        up=(replace(_VERSION_UP, meaning="w_k, after local training"),),
        weight="uniform",
        asynchronous=True,
        group="asynchronous",
        neutral={"coop.lower": 0, "fraction-train": 0.0},
        converges=False,
        biased="the model follows the optimum of the last arrival, and fast clients arrive more often",
    ),
    Algorithm(
        "d-psgd", "D-PSGD", paper("1705.09056"),
        about="Peer to peer: after training, each client's model is mixed with its neighbours' on a graph.",
        solver="d-psgd",
        down=(_NODE_DOWN,),
        up=(replace(MODEL_UP, meaning="y_i, x_i after local training", base="model", reduce="collect"),),
        weight="uniform",
        evaluation=(_NODE_DOWN,),
        group="topology",
        neutral={"d-psgd.route": "complete", "fraction-train": 1.0},
        equal_sizes=True,
        biased="at a fixed step the nodes of a sparse graph keep apart, and their gradients differ",
    ),
    # A huge tau drowns the sum of squares: sqrt(v) + tau = 2 tau = eta.
    Algorithm(
        "fedadagrad", "FedAdagrad", _REDDI,
        about="FedAvg whose mean update is a gradient for Adagrad on the server.",
        reads=("fedopt.", "fedopt.adagrad-beta1"),
        neutral={"fedopt.server-lr": 2e9, "fedopt.tau": 1e9, "fedopt.adagrad-beta1": 0.0},
    ),
    # v stays at tau^2 and sqrt(v) + tau at 1.
    Algorithm(
        "fedadam", "FedAdam", _REDDI,
        about="FedAvg whose mean update is a gradient for Adam on the server.",
        reads=("fedopt.", "fedopt.beta1", "fedopt.beta2"),
        neutral={"fedopt.server-lr": 1.0, "fedopt.tau": 0.5, "fedopt.beta1": 0.0, "fedopt.beta2": 1 - 2**-53},
    ),
    Algorithm(
        "fedasync", "FedAsync", paper("1903.03934"),
        about="The server mixes in each model as it arrives, with less weight for stale ones.",
        solver="versioned",
        down=(_VERSION_DOWN,),
        down_scalars=(Scalar("proximal-mu", "rho of the proximal term rho/2 |w - w^v|^2", low=0),),
        up=(_VERSION_UP,),
        weight="uniform",
        asynchronous=True,
        group="asynchronous",
        neutral={"fedasync.alpha": 1.0, "fedasync.rho": 0.0, "fraction-train": 0.0},
        converges=False,
        biased="the model follows the optimum of the last arrival, and fast clients arrive more often",
    ),
    Algorithm(
        "fedatt", "FedAtt", paper("1812.07108", "attentive aggregation"),
        about="Weights each client, layer by layer, by the distance of its layer from the server's.",
        up=(replace(MODEL_UP, reduce="collect"),),
        weight="uniform",
        neutral={"fedatt.epsilon": 1.0, "fedatt.temperature": 1e30},
        equal_sizes=True,
        biased="attention weighs a client by its distance from the server, not by its examples",
    ),
    Algorithm(
        "fedavg", "FedAvg", MCMAHAN,
        about="Clients train the received model on their own data; the server takes the weighted mean.",
        takes_mean=True,
        ala=True,
    ),
    Algorithm(
        "fedavgm", "FedAvgM", paper("1909.06335", "server momentum"),
        about="FedAvg with momentum on the server.",
        neutral={"fedavgm.server-lr": 1.0, "fedavgm.momentum": 0.0},
    ),
    Algorithm(
        "fedbuff", "FedBuff", paper("2106.06639"),
        about="The server takes a step after every K arriving updates, with less weight for stale ones.",
        solver="versioned",
        down=(_VERSION_DOWN,),
        up=(_VERSION_UP,),
        weight="uniform",
        asynchronous=True,
        group="asynchronous",
        neutral={"fedbuff.buffer": 1_000_000, "fraction-train": 1.0},
        equal_sizes=True,
        converges=False,
        biased="clients count by how often they arrive, not by their examples",
    ),
    Algorithm(
        "feddc", "FedDC", paper("2203.11751"),
        about="Clients learn the drift of their models, and correct it before the server takes the mean.",
        solver="feddc",
        sgd_only=_PATH,
        unclipped=_PATH,
        down=(MODEL_DOWN, Record("gradient", PARAMETERS, "g, mean of v_k g_k over all clients")),
        up=(
            MODEL_UP,
            Record("gradient-delta", PARAMETERS, "v_k (g_k^+ - g_k), change of v_k g_k", exact=True),
        ),
        down_scalars=(Scalar("mean-examples", "n / K, mean examples of the clients, unit of v_k"),),
        keeps=(
            Record("drift", PARAMETERS, "h_k, sum of the client's own w_k - w^t", mean="drift"),
            Record("gradient", PARAMETERS, "g_k, its gradient state", mean="gradient", mean_by="examples"),
            Record("examples", FREE, "n_k at the client's last training, by which the server counts g_k"),
        ),
        weight="uniform",
        no_neutral="alpha = 0 still leaves the corrections of gradient and drift",
    ),
    Algorithm(
        "feddf", "FedDF", paper("2006.07242"),
        about="FedAvg; the server then trains the mean towards the clients' outputs on public examples.",
        up=(replace(MODEL_UP, reduce="collect"),),
        distils="feddf.steps",
        neutral={"feddf.steps": 0},
        biased="the mean is trained towards the clients' ensemble, in which all count alike",
    ),
    Algorithm(
        "feddyn", "FedDyn", paper("2111.04263"),
        about="Each client updates a regulariser that aligns its optimum with the global one.",
        solver="feddyn",
        keeps=(Record("gradient", PARAMETERS, "g_k, gradient of L_k at the client's last model", mean="h"),),
        weight="uniform",
        neutral={"feddyn.alpha": 0.0},
        equal_sizes=True,
    ),
    Algorithm(
        "fedexp", "FedExP", paper("2301.09604"),
        about="FedAvg with a server step that grows when the clients' updates cancel each other in the mean.",
        solver="fedexp",
        up_scalars=(SQUARE_NORM,),
        weight="uniform",
        neutral={"fedexp.epsilon": 1e30},
        equal_sizes=True,
        converges=False,
        biased="near the optimum updates cancel in the mean, not in the norms; small epsilons make it swing",
    ),
    Algorithm(
        "fednova", "FedNova", paper("2007.07481", "section 5"),
        about="Divides each update by its number of local steps, so busy clients do not bias the mean.",
        solver="fednova",
        sgd_only="it divides an update by the weight that SGD gives to each of its steps",
        up=(
            Record(
                "update", SHARED, "(w_k - w^t) / |a_k|_1 of the parameters; buffers as they are",
                base="arrays", per="step-weight",
            ),
        ),
        up_scalars=(STEP_WEIGHT,),
        neutral={"local-steps": 3, "fednova.mu": 0.0},
    ),
    Algorithm(
        "fedprox", "FedProx", LI_PROX,
        about="FedAvg with a term that keeps local models near the global one; partial work counts.",
        takes_mean=True,
        ala=True,
        solver="fedprox",
        down_scalars=(Scalar("proximal-mu", "mu of the proximal term mu/2 |w - w^t|^2"),),
        up_scalars=(
            Scalar("gamma", "gamma_k^t, inexactness |grad h(w_k; w^t)| / |grad F_k(w^t)|", False, low=0),
            replace(LOSS_BEFORE, required=False),
        ),
        neutral={"fedprox.mu": 0.0},
    ),
    Algorithm(
        "fedsgd", "FedSGD", MCMAHAN,
        about="Clients send one full gradient, and the server takes one step.",
        by_steps="fedavg",
        solver="fedsgd",
        sgd_only=_NO_STEP,
        unclipped=_NO_STEP,
        up=(FULL_GRADIENT,),
        neutral={"local-epochs": 1, "batch-size": 0},
    ),
    Algorithm(
        "fsvrg", "FSVRG", _KONECNY,
        about="Variance-reduced local steps around a full gradient of the round's clients.",
        solver="fsvrg",
        sgd_only=_REDUCED,
        unclipped=_REDUCED,
        phases={
            "gradient": Algorithm(
                "fsvrg", "FSVRG, full gradients", _KONECNY,
                solver="gradient",
                up=(FULL_GRADIENT,),
            )
        },
        down=(MODEL_DOWN, COHORT_GRADIENT),
        neutral={"local-epochs": 1, "batch-size": 0},
    ),
    Algorithm(
        "fsvrg-sparse", "FSVRG for sparse features", _KONECNY_SPARSE,
        about="FSVRG that scales each feature by the number of examples and clients that have it.",
        solver="fsvrg-sparse",
        sgd_only=_REDUCED,
        unclipped=_REDUCED,
        phases={
            "gradient": Algorithm(
                "fsvrg-sparse", "FSVRG for sparse features, full gradients and counts", _KONECNY_SPARSE,
                solver="feature-counts",
                up=(
                    FULL_GRADIENT,
                    Record(
                        "frequency", COLUMNS, "phi_k^j, share of examples with a non-zero feature j",
                        of="all",
                    ),
                    Record(
                        "presence", COLUMNS, "1/n_k if the client has a non-zero feature j, else 0", "sum",
                        of="all",
                    ),
                ),
            )
        },
        down=(
            MODEL_DOWN,
            COHORT_GRADIENT,
            Record("frequency", COLUMNS, "phi^j, share of the cohort's examples with a non-zero feature j"),
        ),
        neutral={"local-epochs": 1, "batch-size": 0},
    ),
    Algorithm(
        "hierfavg", "HierFAVG", paper("1905.06641"),
        about="Edges average their clients several times before the cloud averages the edges.",
        down_scalars=(
            Scalar("training", "(t - 1) kappa_2 + j of edge round j, by which batches are drawn", low=1),
        ),
        repeats=True,
        group="topology",
        neutral={"hierfavg.kappa2": 1},
        biased="between two means over all, edges drift towards the optima of their own clients",
    ),
    Algorithm(
        "nbafl", "NbAFL", paper("1911.00222", "Algorithm 1"),
        about="Clients clip their models and add noise, as published: no real protection "
        "(docs/howto/privacy.md).",
        solver="nbafl",
        down_scalars=(Scalar("sigma-up", "sigma_U, standard deviation of a client's noise", low=0),),
        neutral={"nbafl.mu": 0.0, "nbafl.clip": 1e6, "nbafl.epsilon": 1e100},
        horizon=True,
        unsafe_reason="its noise follows from the run's seed and from a disproved sensitivity, so it is no "
        "protection",
    ),
    Algorithm(
        "qfedavg", "q-FedAvg", replace(_LI_FAIR, where="Algorithm 2"),
        group="fair",
        about="Gives clients with a large loss more weight, to make accuracy more even across clients.",
        reads=("qffl.",),
        solver="qfedavg",
        sgd_only="1 / eta stands for the Lipschitz constant of a gradient step",
        unclipped="1 / eta stands for the Lipschitz constant of a gradient step",
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
    Algorithm(
        "qfedsgd", "q-FedSGD", replace(_LI_FAIR, where="Algorithm 1"),
        group="fair",
        about="Like q-FedAvg, with one full gradient a client in place of local training.",
        by_steps="qfedavg",
        reads=("qffl.",),
        solver="qfedsgd",
        sgd_only=_NO_STEP,
        unclipped=_NO_STEP,
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
    Algorithm(
        "scaffold", "SCAFFOLD", paper("1910.06378"),
        about="Control variates correct local steps for the differences between clients' data.",
        solver="scaffold",
        sgd_only="its control variates correct steps that are linear in the gradient",
        unclipped="its control variates correct steps that are linear in the gradient",
        down=(MODEL_DOWN, Record("control", PARAMETERS, "c, the server's control variate")),
        up=(
            MODEL_UP,
            Record(
                "control-delta", PARAMETERS, "c_i^+ - c_i, change of the client's control variate",
                exact=True,
            ),
        ),
        keeps=(Record("control", PARAMETERS, "c_i, the client's control variate", mean="control"),),
        weight="uniform",
        neutral={"local-epochs": 1, "batch-size": 0, "fraction-train": 1.0},
        equal_sizes=True,
    ),
    Algorithm(
        "signsgd", "signSGD with majority vote", paper("1802.04434", "Algorithm 1 with majority vote"),
        about="Clients send the signs of one gradient; the server steps along the majority's sign.",
        differs=COINS,
        solver="signsgd",
        sgd_only=_NO_STEP,
        unclipped=_NO_STEP,
        up=(
            Record(
                "sign", PARAMETERS, "sign of g_k, the gradient on one minibatch at w^t: 1 or -1", "sum",
                of="batch", coded=True, code="sign",
            ),
        ),
        stages=("codec",),
        weight="uniform",
        no_neutral="a majority of signs has no magnitude, unlike the mean of gradients",
        converges=False,
        biased="a vote does not say how large a gradient is, and does not use n_k",
    ),
    Algorithm(
        "fedyogi", "FedYogi", _REDDI,
        about="FedAvg whose mean update is a gradient for Yogi on the server.",
        reads=("fedopt.", "fedopt.beta1", "fedopt.beta2"),
        neutral={"fedopt.server-lr": 1.0, "fedopt.tau": 0.5, "fedopt.beta1": 0.0, "fedopt.beta2": 1 - 2**-53},
    ),
)  # fmt: skip

# Every module of this folder that declares `ENTRIES`; `user_algorithm` reads what is made here.
_OTHERS = sorted(
    {found.name for found in iter_modules([str(Path(__file__).parent)])} - {"algorithms", "user_algorithm"}
)
ALGORITHMS: dict[str, Algorithm] = {
    a.name: a
    for entries in (
        ENTRIES,
        *(getattr(import_module(f"task.catalogue.{name}"), "ENTRIES", ()) for name in _OTHERS),
    )
    for a in entries
}
