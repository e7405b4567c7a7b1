"""The catalogue's second half: personalised algorithms, and the baselines that they are compared with.

Their models are the clients' own, so each entry says what a client begins with that is new or has lost what
it kept (`newcomer`), and they are measured at the clients (`personal`). See `task.catalogue.algorithms`.

Means are weighted as in the papers: FedBN, FedRep, Per-FedAvg and pFedMe weigh all clients of a round alike,
and so does FedBN's own code; that of FedRep's authors weighs by n_k. Ditto's and FedALA's global model is
FedAvg's; Ditto's authors draw clients by n_k and take the plain mean: ``selection = "proportional"``.
"""

from dataclasses import replace
from functools import partial

from task.catalogue.entry import MCMAHAN, Algorithm, Variant
from task.catalogue.papers import paper
from task.catalogue.record import (
    CLIENTS,
    FEATURES,
    FREE,
    LOGITS,
    MODEL_DOWN,
    MODEL_UP,
    ONE,
    PRIVATE,
    PROTOTYPES,
    SHARED,
    WHOLE,
    Record,
    Scalar,
)
from task.catalogue.several import several
from task.catalogue.stages import ALA_KEEPS

_PRIVATE = Record("personal", PRIVATE, "the part of the model that stays at the client")
_WHOLE = Record("personal", WHOLE, "v_k, the client's own model")
_OWN_CLUSTER = Record("model", SHARED, "theta_c, the model of the client's cluster", to="each")
_CLUSTER = Record("model-0", SHARED, "theta_j, a cluster's model")
_COMPONENT = Record("model-0", SHARED, "theta_m, a component model")
_EACH_MODEL_UP = replace(MODEL_UP, reduce="collect")
_PROTOTYPES_DOWN = Record("prototypes", PROTOTYPES, "C^(j), global prototypes, and what stands behind them")
_FRESH_PART = "the private part of the run's initial model, under the round's shared part"

_own = partial(Algorithm, personal=True)
_averaged = partial(_own, rule="fedavg", takes_mean=True)  # those whose server does what FedAvg's does

ENTRIES = (
    _averaged(
        "apfl", "APFL", paper("2003.13461"),
        about="Each client mixes the global model with its own model, by a learned weight.",
        differs="For each batch w_k takes its step first; the gradient of v_k is then computed at a mixture "
        "with the new w_k, as in the authors' code. In the paper's Algorithm 1 both gradients are computed "
        "before either step. The points of that gradient differ by alpha (1 - alpha) eta.",
        solver="apfl",
        keeps=(
            Record("personal", WHOLE, "v_k, the client's own model, with the buffers of the mixture"),
            Record("alpha", ONE, "alpha_k, its share of the mixture"),
        ),
        newcomer="v_k = w^t, the global model of its first round, and the run's initial alpha",
        no_neutral="the clients' own models are trained in addition to FedAvg's global one",
    ),
    _own(
        "apple", "APPLE", paper("2110.08394"),
        about="Each client mixes all models by learned weights, and trains its own within the mixture.",
        solver="apple",
        sgd_only="p_ii scales a client's steps, which other optimizers undo",
        down=(
            Record("models", SHARED, "w_j, core models of all that sent one; others' are w^0", to="each"),
            Record("start-ratios", CLIENTS, "p0_j = n_j / n, by client"),
        ),
        up=(_EACH_MODEL_UP,),
        keeps=(_WHOLE, Record("ratios", FREE, "p_ij, directed relationships, by client j")),
        weight="uniform",
        batched=False,
        evaluation=(),
        newcomer="the core model that the server has of it, or the run's initial one; p_ij = n_j / n",
        no_neutral="a client's model is always a sum of all clients' core models with its own weights",
    ),
    _own(
        "centralised", "Centralised", replace(MCMAHAN, where="section 3, SGD on the pooled data"),
        group="baseline",
        about="Trains one model on the pooled data of all clients: the baseline that needs no federation.",
        pooled="once",
        newcomer="the model of the pooled data",
        no_neutral="one client trains on the data of all",
    ),
    _own(
        "cfl", "CFL", paper("1910.01991", "recursive bipartition"),
        about="Splits a cluster of clients in two when they disagree; each cluster has its own model.",
        solver="d-psgd",
        down=(_OWN_CLUSTER,),
        up=(replace(MODEL_UP, base="model", reduce="collect"),),
        weight="uniform",
        evaluation=(_OWN_CLUSTER,),
        newcomer="the model of the largest cluster, which it joins after its training",
        neutral={"cfl.epsilon1": 0.0},
        equal_sizes=True,
    ),
    _averaged(
        "ditto", "Ditto", paper("2012.04221"),
        about="FedAvg, plus a personal model for each client that is pulled towards the global one.",
        reads=("ditto.", "personal.epochs"),
        ala=True,
        solver="ditto",
        keeps=(_WHOLE,),
        newcomer="v_k = w^t, the global model of its first round",
        no_neutral="the clients' own models are trained in addition to FedAvg's global one",
    ),
    _own(
        "ensemble", "Ensemble of local models",
        paper("1612.01474", "section 2.4, mean of the members' probabilities"),
        group="baseline",
        about="Each client trains alone, on its own or its site's data; the models vote by mean probability.",
        ensemble=True,
        classes="the members of an ensemble vote with probabilities of classes",
        # A batch of members would hold the data M times.
        variants=(Variant("ensemble.of", "site", {"pooled": "each", "batched": False}),),
        solver="ensemble",
        composite=True,
        down=(),
        up=(_EACH_MODEL_UP,),
        keeps=(_WHOLE,),
        weight="uniform",
        newcomer="the run's initial model, or with ensemble.of=site one of its own; all votes count",
        evaluation=(Record("models", SHARED, "the clients' local models", to="each"),),
        no_neutral="no model is ever averaged",
    ),
    _averaged(
        "fedala", "FedALA", paper("2212.01197"),
        about="Before training, each client learns for each parameter how much of the global model to take.",
        ala=True,
        keeps=ALA_KEEPS,
        stages=("ala",),
        newcomer="the run's initial model as Theta_i, with which the global one is mixed at once; W = 1",
        neutral={"fedala.layers": 0},
    ),
    _own(
        "fedamp", "FedAMP", paper("2007.03797"),
        about="Gives each client a mean of the others' models in which similar models count more.",
        solver="fedamp",
        down=(Record("cloud", SHARED, "u_k, the client's own cloud model", to="each"),),
        up=(_EACH_MODEL_UP,),
        keeps=(_WHOLE,),
        weight="uniform",
        evaluation=(),
        newcomer="the plain mean of the models that the server knows, or the initial one if it knows none",
        no_neutral="every client gets its own mean, weighted by the distances of the others' models",
    ),
    _averaged(
        "fedbabu", "FedBABU", paper("2106.06042"),
        about="Trains only the body, under one random head for all; clients fine-tune both before use.",
        reads=("fedbabu.", "personal.epochs"),
        solver="fedbabu",
        private="head",
        newcomer="the run's initial head on the round's body, fine-tuned as at all clients; nothing is kept",
        neutral={"personal.layers": 0},
    ),
    _averaged(
        "fedbn", "FedBN", paper("2102.07623"),
        about="FedAvg in which normalisation layers stay at the client.",
        keeps=(_PRIVATE,),
        weight="uniform",
        private="norm",
        newcomer=_FRESH_PART,
        no_neutral="the normalisation layers are never averaged, and a model without any is refused",
    ),
    _own(
        "feddbe", "FedDBE", paper("2311.14975"),
        about="FedAvg in which each client has a vector that removes its own bias from the features.",
        solver="feddbe",
        features=True,
        phases={
            "features": Algorithm(
                "feddbe", "FedDBE, mean features", paper("2311.14975"),
                solver="feddbe-mean",
                up=(Record("features", FEATURES, "r_k, mean features of a local training from w^0"),),
            )
        },
        down=(
            MODEL_DOWN,
            Record("features", FEATURES, "mean features of the first round's clients, fixed for the run"),
        ),
        keeps=(Record("bias", FEATURES, "u_k, added to the client's features"),),
        newcomer="u_k = 0, with which the client's model is the global one",
        no_neutral="every client's features are moved by its own vector",
    ),
    _own(
        "fedem", "FedEM", paper("2108.10252"),
        about="Each client's model is a mixture, with its own weights, of a few models that all train.",
        classes="the components of FedEM vote with probabilities of classes",
        solver="fedem",
        composite=True,
        models="fedem.components",
        down=several(_COMPONENT, 3),
        up=several(replace(_COMPONENT, meaning="theta_m after local training", base="model-0"), 3),
        keeps=(Record("weights", FREE, "pi_k, weights of the components"),),
        evaluation=several(_COMPONENT, 3),
        newcomer="weights of 1 / M, which its training data change at once",
        no_neutral="the server has several models; with fedem.components = 1 it is FedAvg",
    ),
    _own(
        "fedfomo", "FedFomo", paper("2012.08565", "section 3"),
        about="Each client receives some others' models, and weights them by their results on its own data.",
        solver="fedfomo",
        down=(Record("models", SHARED, "theta_n, models of the M clients that the server chose", to="each"),),
        up=(
            _EACH_MODEL_UP,
            Record(
                "affinity", CLIENTS, "w_n of eq. 6, by client; 0 of one not compared", "collect",
                of="validation",
            ),
        ),
        keeps=(_WHOLE, Record("before", WHOLE, "the client's model before its last training")),
        weight="uniform",
        batched=False,
        evaluation=(),
        newcomer="the run's initial model",
        no_neutral="every client gets its own mean, weighted by the others' models' results on its data",
    ),
    _own(
        "fedmd", "FedMD", paper("1910.03581"),
        about="Clients with any models agree on logits of public examples; each keeps its own model.",
        classes="FedMD averages scores of classes",
        solver="fedmd",
        down=(Record("consensus", LOGITS, "f~, mean logits of the public examples, and of how many"),),
        up=(
            Record(
                "logits", LOGITS, "f_k, the client's logits of the public examples, and 1", "sum",
                weights="clients",
            ),
        ),
        keeps=(_PRIVATE,),
        weight="uniform",
        private="all",
        newcomer="the run's initial model, which digests the consensus at once",
        evaluation=(),
        no_neutral="no model is ever averaged; without digest-epochs it is local training only",
    ),
    _averaged(
        "fedper", "FedPer", paper("1912.00818"),
        about="FedAvg in which the last layers stay at the client.",
        keeps=(_PRIVATE,),
        private="head",
        newcomer=_FRESH_PART,
        neutral={"personal.layers": 0},
    ),
    _own(
        "fedproto", "FedProto", paper("2105.00243"),
        about="Clients share class prototypes (mean features) and keep their models, which may differ.",
        classes="FedProto averages features by class",
        solver="fedproto",
        composite=True,
        features=True,
        down=(_PROTOTYPES_DOWN,),
        up=(
            Record(
                "prototypes", PROTOTYPES, "w_i C_i^(j), its mean features by class times w_i, and w_i", "sum",
                of="class", weights="counts",
            ),
        ),
        keeps=(_PRIVATE,),
        weight="uniform",
        private="all",
        newcomer="the run's initial model, pulled to the global prototypes at once",
        evaluation=(_PROTOTYPES_DOWN,),
        no_neutral="no model is ever averaged; at lambda = 0 it is local training only",
    ),
    _averaged(
        "fedphp", "FedPHP", paper("10.1007/978-3-030-86486-6_36"),
        about="Each client keeps a running mean of its own models, which teaches its next one.",
        classes="FedPHP learns probabilities of classes",
        variants=(
            Variant("fedphp.transfer", "kd", {"features": False}),
            Variant("fedphp.transfer", "mmd", {"classes": ""}),
        ),
        solver="fedphp",
        features=True,
        keeps=(
            Record("personal", WHOLE, "p_k, the inherited model, a running mean of the client's own"),
            Record("rounds", ONE, "a_k, rounds that the client took part in"),
        ),
        newcomer="p_k = w^t, the global model of its first round",
        neutral={"fedphp.lambda": 0.0},
        horizon=True,
    ),
    _averaged(
        "fedrep", "FedRep", paper("2102.07089"),
        about="Trains the client's own last layers first, then the shared layers, which are averaged.",
        reads=("fedrep.", "personal.epochs"),
        ala=True,
        solver="fedrep",
        keeps=(_PRIVATE,),
        weight="uniform",
        private="head",
        newcomer=_FRESH_PART,
        neutral={"personal.layers": 0},
        equal_sizes=True,
    ),
    _averaged(
        "fedrod", "FedRoD", paper("2107.00778"),
        about="Trains a generic model with a balanced loss, and on top of it each client's own head.",
        classes="FedRoD balances classes",
        solver="fedrod",
        features=True,
        keeps=(Record("head", FREE, "h_P, the client's own linear head"),),
        newcomer="h_P = 0, with which the client's model is the generic one",
        neutral={"fedrod.gamma": 0.0},
    ),
    _averaged(
        "fenda", "FENDA-FL", paper("2309.16825", "section 3"),
        about="A shared and a local feature extractor side by side; only the shared one is averaged.",
        keeps=(_PRIVATE,),
        private="twin",
        newcomer=_FRESH_PART,
        no_neutral="its model has two extractors",
    ),
    _averaged(
        "fine-tune", "FedAvg, fine-tuned", paper("1910.10252", "section 3"),
        about="FedAvg; each client trains the model on its own data before use.",
        reads=("fine-tune.", "personal.epochs"),
        solver="fine-tune",
        newcomer="the global model, fine-tuned as at all clients; nothing is kept",
        neutral={"fine-tune.mu": 0.0},
    ),
    _own(
        "ifca", "IFCA", paper("2006.04088"),
        about="Several global models; each client trains the one that fits its data best.",
        solver="ifca",
        models="ifca.clusters",
        down=several(_CLUSTER, 2),
        up=(_EACH_MODEL_UP,),
        up_scalars=(
            Scalar(
                "cluster", "j, number of the model that the client trained", low=0, high=99, whole=True,
                reduce="collect",
            ),
        ),
        evaluation=several(_CLUSTER, 2),
        newcomer="the model of the cluster with the least loss on its training data; nothing is kept",
        no_neutral="the server has several models; with ifca.clusters = 1 it is FedAvg",
    ),
    _averaged(
        "knn-per", "kNN-Per", paper("2111.09360"),
        about="FedAvg's model votes together with the client's nearest training examples in feature space.",
        classes="the neighbours of kNN-Per vote for classes",
        solver="knn-per",
        composite=True,
        features=True,
        newcomer="the global model, with the client's own training examples; nothing is kept",
        no_neutral="training is always FedAvg's; with knn-per.lambda = 0 its models are, too",
    ),
    _averaged(
        "lg-fedavg", "LG-FedAvg", paper("2001.01523"),
        about="FedAvg of the last layers only: the first ones, the representation, stay at the client.",
        keeps=(_PRIVATE,),
        private="body",
        newcomer=_FRESH_PART,
        no_neutral="it is FedAvg where lg-fedavg.layers are all layers, whose number is the model's",
    ),
    _own(
        "local-only", "Local training only", paper("1705.10467", "section 5, local models"),
        group="baseline",
        about="Each client trains alone and sends nothing: the baseline without federated learning.",
        down=(),
        up=(),
        keeps=(_PRIVATE,),
        private="all",
        newcomer="the run's initial model",
        evaluation=(),
        no_neutral="nothing is shared",
    ),
    Algorithm(
        "moon", "MOON", paper("2103.16257"),
        about="A contrastive loss pulls local features to the global model's, away from earlier local ones.",
        classes="MOON is derived for a classifier, whose features it contrasts",
        variants=(Variant("moon.mu", 0.0, {"features": False}),),
        rule="fedavg",
        takes_mean=True,
        solver="moon",
        features=True,
        keeps=(Record("previous", FREE, "w_j, its local models at the ends of its last rounds"),),
        newcomer="no negative: the contrastive term is 0 in its first round",
        neutral={"moon.mu": 0.0},
    ),
    _averaged(
        "per-fedavg", "Per-FedAvg", paper("2002.07948"),
        about="Trains a starting point from which one step makes a good model for each client.",
        solver="per-fedavg",
        up=(replace(MODEL_UP, of="halves"),),
        weight="uniform",
        batched=False,
        newcomer="the global model, adapted by one step; nothing is kept",
        no_neutral="each step takes its gradient on only half of its batch",
    ),
    _own(
        "pfedme", "pFedMe", paper("2006.08848"),
        about="Each client has its own model near the global one, tied to it by a Moreau envelope.",
        solver="pfedme",
        sgd_only="its steps follow theta, which is found by gradient steps with their own rate",
        keeps=(_WHOLE,),
        weight="uniform",
        newcomer="theta = w^t, the global model of its first round",
        no_neutral="a step of w is lambda (w - theta), not a gradient",
    ),
)  # fmt: skip
