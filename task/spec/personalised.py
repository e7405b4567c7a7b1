"""The catalogue's second half: personalised algorithms, and the baselines that they are compared with.

Their models are the clients' own, so each entry says what a client begins with that is new or has lost what
it kept (`newcomer`), and they are measured at the clients (`personal`). See `task.spec.algorithms`.

Means are weighted as in the papers: FedBN, FedRep, Per-FedAvg and pFedMe weigh all clients of a round alike,
and so does FedBN's own code; that of FedRep's authors weighs by n_k. Ditto's and FedALA's global model is
FedAvg's; Ditto's authors draw clients by n_k and take the plain mean: ``selection = "proportional"``.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from task.spec.entry import Algorithm, Paper
from task.spec.record import CLIENTS, FREE, MODEL_UP, PRIVATE, SHARED, TOP, WHOLE, Record

_PRIVATE = Record("personal", PRIVATE, "the part of the model that stays at the client")
_WHOLE = Record("personal", WHOLE, "v_k, the client's own model")
_EACH_MODEL_UP = replace(MODEL_UP, reduce="collect")
_FRESH_PART = "the private part of the run's initial model, under the round's shared part"

ALA_KEEPS = (
    Record("local-model", SHARED, "Theta_i^{t-1}, what the client last sent up"),
    Record("ala-weights", TOP, "W_i, weights of the last p layers"),
    Record("ala-started", FREE, "1 once the start phase of W is over"),
)

ALA_FITS = ("ditto", "fedala", "fedavg", "fedprox", "fedrep")
"""Algorithms in front of which ``ala = true`` may stand."""

PERSONAL: dict[str, Algorithm] = {
    "apple": Algorithm(
        name="apple",
        title="APPLE",
        paper=Paper(
            "Luo, Wu",
            2022,
            "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning",
            "2110.08394",
            "Algorithm 1",
        ),
        solver="apple",
        down=(
            Record("models", SHARED, "w_j, core models of all that sent one; others' are w^0", to="each"),
            Record("start-ratios", CLIENTS, "p0_j = n_j / n, by client"),
        ),
        up=(_EACH_MODEL_UP,),
        keeps=(_WHOLE, Record("ratios", FREE, "p_ij, directed relationships, by client j")),
        weight="uniform",
        batched=False,
        personal=True,
        evaluation=(),
        newcomer="the core model that the server has of it, else the run's initial one, and p_ij = n_j / n",
        no_neutral="a client's model is always a sum over all clients' core models with weights of its own",
    ),
    "centralised": Algorithm(
        name="centralised",
        title="Centralised",
        paper=Paper(
            "McMahan, Moore, Ramage, Hampson, Agüera y Arcas",
            2017,
            "Communication-Efficient Learning of Deep Networks from Decentralized Data",
            "1602.05629",
            "section 3, SGD on the pooled data",
        ),
        personal=True,
        pooled=True,
        newcomer="the model of the pooled data",
        no_neutral="one client trains on everybody's data",
    ),
    "ditto": Algorithm(
        name="ditto",
        title="Ditto",
        paper=Paper(
            "Li, Hu, Beirami, Smith",
            2021,
            "Ditto: Fair and Robust Federated Learning Through Personalization",
            "2012.04221",
            "Algorithm 1",
        ),
        rule="fedavg",
        solver="ditto",
        keeps=(_WHOLE,),
        personal=True,
        newcomer="v_k = w^t, the global model of its first round",
        no_neutral="the clients' own models are trained beside FedAvg's global one",
    ),
    "ensemble": Algorithm(
        name="ensemble",
        title="Ensemble of local models",
        paper=Paper(
            "Lakshminarayanan, Pritzel, Blundell",
            2017,
            "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles",
            "1612.01474",
            "section 2.4, mean of the members' probabilities",
        ),
        solver="ensemble",
        down=(),
        up=(_EACH_MODEL_UP,),
        keeps=(_WHOLE,),
        weight="uniform",
        personal=True,
        newcomer="the run's initial model as its own member; it is judged by everybody's vote",
        evaluation=(Record("models", SHARED, "the clients' local models", to="each"),),
        no_neutral="no model is ever averaged",
    ),
    "fedala": Algorithm(
        name="fedala",
        title="FedALA",
        paper=Paper(
            "Zhang, Hua, Wang, Song, Xue, Ma, Guan",
            2023,
            "FedALA: Adaptive Local Aggregation for Personalized Federated Learning",
            "2212.01197",
            "Algorithm 1",
        ),
        rule="fedavg",
        keeps=ALA_KEEPS,
        personal=True,
        ala=True,
        newcomer="the run's initial model as Theta_i, so that the global one is mixed with it at once; W = 1",
        neutral=MappingProxyType({"fedala.layers": 0}),
    ),
    "fedamp": Algorithm(
        name="fedamp",
        title="FedAMP",
        paper=Paper(
            "Huang, Chu, Zhou, Wang, Liu, Pei, Zhang",
            2021,
            "Personalized Cross-Silo Federated Learning on Non-IID Data",
            "2007.03797",
            "Algorithm 1",
        ),
        solver="fedamp",
        down=(Record("cloud", SHARED, "u_k, the client's own cloud model", to="each"),),
        up=(_EACH_MODEL_UP,),
        keeps=(_WHOLE,),
        weight="uniform",
        personal=True,
        evaluation=(),
        newcomer="the plain mean of the models that the server knows, before any the initial one",
        no_neutral="every client gets a mean of its own, weighted by how near the others' models are",
    ),
    "fedbn": Algorithm(
        name="fedbn",
        title="FedBN",
        paper=Paper(
            "Li, Jiang, Zhang, Kamp, Dou",
            2021,
            "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
            "2102.07623",
            "Algorithm 1",
        ),
        rule="fedavg",
        keeps=(_PRIVATE,),
        weight="uniform",
        private="norm",
        personal=True,
        newcomer=_FRESH_PART,
        no_neutral="the normalisation layers are never averaged, and a model without any is refused",
    ),
    "fedfomo": Algorithm(
        name="fedfomo",
        title="FedFomo",
        paper=Paper(
            "Zhang, Sapra, Fidler, Yeung, Alvarez",
            2021,
            "Personalized Federated Learning with First Order Model Optimization",
            "2012.08565",
            "section 3",
        ),
        solver="fedfomo",
        down=(Record("models", SHARED, "theta_n, models of the M clients that the server chose", to="each"),),
        up=(
            _EACH_MODEL_UP,
            Record(
                "affinity",
                CLIENTS,
                "w_n of eq. 6, by client; 0 of one not compared",
                "collect",
                of="validation",
            ),
        ),
        keeps=(_WHOLE, Record("before", WHOLE, "the client's model before its last training")),
        weight="uniform",
        batched=False,
        personal=True,
        evaluation=(),
        newcomer="the run's initial model",
        no_neutral="every client gets a mean of its own, weighted by how good the others' models are to it",
    ),
    "fedper": Algorithm(
        name="fedper",
        title="FedPer",
        paper=Paper(
            "Arivazhagan, Aggarwal, Singh, Choudhary",
            2019,
            "Federated Learning with Personalization Layers",
            "1912.00818",
            "Algorithm 1",
        ),
        rule="fedavg",
        keeps=(_PRIVATE,),
        private="head",
        personal=True,
        newcomer=_FRESH_PART,
        neutral=MappingProxyType({"personal.layers": 0}),
    ),
    "fedrep": Algorithm(
        name="fedrep",
        title="FedRep",
        paper=Paper(
            "Collins, Hassani, Mokhtari, Shakkottai",
            2021,
            "Exploiting Shared Representations for Personalized Federated Learning",
            "2102.07089",
            "Algorithm 1",
        ),
        rule="fedavg",
        solver="fedrep",
        keeps=(_PRIVATE,),
        weight="uniform",
        private="head",
        personal=True,
        newcomer=_FRESH_PART,
        neutral=MappingProxyType({"personal.layers": 0}),
        equal_sizes=True,
    ),
    "fenda": Algorithm(
        name="fenda",
        title="FENDA-FL",
        paper=Paper(
            "Tavakoli, Emerson, Ayromlou, Jewell, Krishnan, Zhang, Verma, Razak",
            2024,
            "A Comprehensive View of Personalized Federated Learning on Heterogeneous Clinical Datasets",
            "2309.16825",
            "section 3",
        ),
        rule="fedavg",
        keeps=(_PRIVATE,),
        private="twin",
        personal=True,
        newcomer=_FRESH_PART,
        no_neutral="its model has two extractors",
    ),
    "fine-tune": Algorithm(
        name="fine-tune",
        title="FedAvg, fine-tuned",
        paper=Paper(
            "Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage",
            2019,
            "Federated Evaluation of On-device Personalization",
            "1910.10252",
            "section 3",
        ),
        rule="fedavg",
        solver="fine-tune",
        personal=True,
        newcomer="the global model, fine-tuned like everybody's; nothing is kept",
        neutral=MappingProxyType({"fine-tune.mu": 0.0}),
    ),
    "local-only": Algorithm(
        name="local-only",
        title="Local training only",
        paper=Paper(
            "Smith, Chiang, Sanjabi, Talwalkar",
            2017,
            "Federated Multi-Task Learning",
            "1705.10467",
            "section 5, local models",
        ),
        down=(),
        up=(),
        keeps=(_PRIVATE,),
        private="all",
        personal=True,
        newcomer="the run's initial model",
        evaluation=(),
        no_neutral="nothing is shared",
    ),
    "moon": Algorithm(
        name="moon",
        title="MOON",
        paper=Paper(
            "Li, He, Song", 2021, "Model-Contrastive Federated Learning", "2103.16257", "Algorithm 1"
        ),
        rule="fedavg",
        solver="moon",
        keeps=(Record("previous", FREE, "w_j, its local models at the ends of its last rounds"),),
        newcomer="no negative: the contrastive term is 0 in its first round",
        neutral=MappingProxyType({"moon.mu": 0.0}),
    ),
    "per-fedavg": Algorithm(
        name="per-fedavg",
        title="Per-FedAvg",
        paper=Paper(
            "Fallah, Mokhtari, Ozdaglar",
            2020,
            "Personalized Federated Learning: A Meta-Learning Approach",
            "2002.07948",
            "Algorithm 1",
        ),
        rule="fedavg",
        solver="per-fedavg",
        up=(replace(MODEL_UP, of="halves"),),
        weight="uniform",
        batched=False,
        personal=True,
        newcomer="the global model, adapted by one step; nothing is kept",
        no_neutral="each step takes its gradient on half of its batch only",
    ),
    "pfedme": Algorithm(
        name="pfedme",
        title="pFedMe",
        paper=Paper(
            "Dinh, Tran, Nguyen",
            2020,
            "Personalized Federated Learning with Moreau Envelopes",
            "2006.08848",
            "Algorithm 1",
        ),
        solver="pfedme",
        keeps=(_WHOLE,),
        weight="uniform",
        personal=True,
        newcomer="theta = w^t, the global model of its first round",
        no_neutral="a step of w is lambda (w - theta), not a gradient",
    ),
}
