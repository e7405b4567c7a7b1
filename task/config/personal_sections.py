"""The run-config keys of the personalised algorithms, one section each; `PersonalConfig` is shared."""

from dataclasses import dataclass, field

from task.config.sections import Section, knob
from task.config.when import HEAD, When, algorithms


class FedBABUConfig(Section):
    """FedBABU, Oh, Kim and Yun 2022."""

    tune: str = knob(
        "all",
        "part of the model that is fine-tuned before evaluation",
        choices=("all", "head", "body", "none"),
    )


class LGFedAvgConfig(Section):
    """LG-FedAvg, Liang et al. 2020."""

    layers: int = knob(1, "number of last layers that are shared; all = FedAvg, 0 = local-only", low=0)


class FedRoDConfig(Section):
    """FedRoD, Chen and Chao 2022."""

    gamma: float = knob(
        1.0, "gamma, strength of the class-count correction of the generic loss; 0 = FedAvg", low=0
    )


class APFLConfig(Section):
    """APFL, Deng, Kamani and Mahdavi 2020."""

    alpha: float = knob(0.5, "initial alpha, weight of the client's own model", low=0, high=1)
    adaptive: bool = knob(True, "one gradient step on alpha each round; false = alpha is constant")


class FedPHPConfig(Section):
    """FedPHP, Li et al. 2021."""

    lambda_: float = knob(
        0.1, "lambda, weight of the transfer from the inherited model; 0 = FedAvg", low=0, high=1
    )
    transfer: str = knob(
        "kd",
        "what is transferred: outputs (kd), or the distribution of features (mmd)",
        choices=("kd", "mmd"),
    )
    temperature: float = knob(
        4.0, "transfer=kd: temperature of the logits", above=0, when=When("fedphp.transfer", ("kd",))
    )
    mu: float = knob(0.9, "largest share of the old inherited model that is kept in a round", low=0, below=1)


class KNNPerConfig(Section):
    """kNN-Per, Marfoq et al. 2022."""

    neighbours: int = knob(5, "k, number of nearest training examples of the client that vote", low=1)
    lambda_: float = knob(0.5, "lambda, weight of the neighbours' vote; 0 = FedAvg's model", low=0, high=1)
    scale: float = knob(1.0, "sigma of exp(-|z - z_i|^2 / (d sigma)), d = width of the features", above=0)


class FedDBEConfig(Section):
    """FedDBE, Zhang et al. 2023."""

    kappa: float = knob(
        1.0, "kappa, weight of the distance between mean features; authors: 50 at learning rate 0.005", low=0
    )
    momentum: float = knob(
        1.0, "momentum of the running mean of features: share of the new batch", above=0, high=1
    )


class IFCAConfig(Section):
    """IFCA, Ghosh et al. 2020."""

    clusters: int = knob(2, "p, number of cluster models; 1 = FedAvg", low=1, high=100)


class CFLConfig(Section):
    """CFL, Sattler, Müller and Samek 2021."""

    epsilon1: float = knob(
        0.4, "epsilon_1, |mean update| of a cluster below which it may be split; 0 = never split", low=0
    )
    epsilon2: float = knob(1.6, "epsilon_2, largest |update| of a cluster above which it may be split", low=0)
    clusters: int = knob(10, "largest number of clusters; 1 = never split", low=1, high=100)
    warmup: int = knob(20, "rounds before the first split", low=0)


class FedEMConfig(Section):
    """FedEM, Marfoq et al. 2021."""

    components: int = knob(
        3, "M, number of component models that each client mixes; 1 = FedAvg", low=1, high=100
    )


class PersonalConfig(Section):
    """Keys that several personalised algorithms share."""

    layers: int = knob(
        1,
        "fedper, fedrep, fedbabu: K_P, number of last layers that form the head",
        low=0,
        when=(HEAD, When("private-layers", ("",))),
    )
    epochs: int = knob(
        0,
        "epochs of FedRep's head, Ditto's personal model, fine-tune, fedbabu's fine-tuning; 0 = local-epochs",
        low=0,
        when=(When("local-steps", (0,)), When("fedbabu.tune", ("none",), but=True)),
    )


class FineTuneConfig(Section):
    """Fine-tuning of a global model, as in the rows "-C" of FedALA's tables."""

    mu: float = knob(0.0, "mu of FedProx's term in training and fine-tuning; 0 = FedAvg's", low=0)


class FedALAConfig(Section, when=algorithms(lambda entry: "ala" in entry.stages, other=When("ala", (True,)))):
    """Adaptive local aggregation, Zhang et al. 2023: fedala, or ala = true with another algorithm."""

    eta: float = knob(1.0, "eta, learning rate of the weights W; 0 = W stays one, FedAvg", low=0)
    percent: float = knob(80.0, "s, percent of a client's examples that W is trained on", above=0, high=100)
    layers: int = knob(1, "p, last layers of the shared part that have weights W; 0 = FedAvg", low=0)
    threshold: float = knob(
        0.01, "start phase: ends when the last losses' standard deviation is below this", above=0
    )
    window: int = knob(10, "start phase: number of losses in that deviation", low=2)
    max_epochs: int = knob(100, "start phase: largest number of epochs", low=1)
    sampling: str = knob(
        "block", "how the s percent are chosen: consecutive or random", choices=("block", "random")
    )
    write_weights: bool = knob(
        False, "write the mean of each client's W to clients.jsonl, drawn in the report; changes no model"
    )


class DittoConfig(Section):
    """Ditto, Li et al. 2021."""

    lambda_: float = knob(1.0, "lambda of the term lambda/2 |v - w^t|^2; 0 = local-only", low=0)


class MoonConfig(Section):
    """MOON, Li, He and Song 2021."""

    mu: float = knob(1.0, "mu, weight of the contrastive loss; 0 = FedAvg", low=0)
    temperature: float = knob(0.5, "tau of the contrastive loss", above=0)
    buffer: int = knob(1, "number of previous local models that are the negatives", low=1, high=10)


class PerFedAvgConfig(Section):
    """Per-FedAvg, Fallah, Mokhtari and Ozdaglar 2020."""

    alpha: float = knob(0.01, "alpha, step size of a client's adaptation; 0 = FedAvg on half batches", low=0)
    form: str = knob(
        "fo", "second-order term: fo = without, hf = exact Hessian-vector product", choices=("fo", "hf")
    )


class PFedMeConfig(Section):
    """pFedMe, Dinh, Tran and Nguyen 2020."""

    lambda_: float = knob(15.0, "lambda of the Moreau envelope", above=0)
    steps: int = knob(5, "K, steps towards theta on each batch", low=1)
    inner_lr: float = knob(0.01, "learning rate of the steps towards theta", above=0)
    beta: float = knob(1.0, "beta of the server's step; 1 = the mean of the local models", above=0)


class AppleConfig(Section):
    """APPLE, Luo and Wu 2022."""

    dr_lr: float = knob(0.001, "learning rate of the directed relationships p", low=0)
    mu: float = knob(0.1, "mu of the term mu/2 |p - p_0|^2, p_0 = n_j / n; twice the authors' mu", low=0)
    decay_rounds: int = knob(100, "L, rounds over which that term decays", low=0)


class FedFomoConfig(Section):
    """FedFomo, Zhang et al. 2021."""

    download: int = knob(
        5, "M, number of other clients' models that a client gets in a round; 0 = all", low=0
    )
    epsilon: float = knob(
        0.3, "share of the M models that are drawn at random instead of by affinity", low=0, high=1
    )
    validation: float = knob(
        0.2, "share of a client's training examples that are held out to compare the models", above=0, below=1
    )
    baseline: str = knob(
        "before",
        "reference model: the client's own before its last training, or after it",
        choices=("before", "after"),
    )


class FedAMPConfig(Section):
    """FedAMP, Huang et al. 2021."""

    alpha: float = knob(1.0, "alpha_k, step of the message passing", above=0)
    sigma: float = knob(100.0, "sigma of A(x) = 1 - exp(-x / sigma)", above=0)
    lambda_: float = knob(1.0, "lambda of the term lambda / (2 alpha) |w - u|^2", low=0)


@dataclass(frozen=True, kw_only=True)
class PersonalKeys:
    """The sections of algorithms that give each client its own model."""

    personal: PersonalConfig = field(default_factory=PersonalConfig)
    fine_tune: FineTuneConfig = field(default_factory=FineTuneConfig)
    fedbabu: FedBABUConfig = field(default_factory=FedBABUConfig)
    lg_fedavg: LGFedAvgConfig = field(default_factory=LGFedAvgConfig)
    fedrod: FedRoDConfig = field(default_factory=FedRoDConfig)
    apfl: APFLConfig = field(default_factory=APFLConfig)
    fedphp: FedPHPConfig = field(default_factory=FedPHPConfig)
    knn_per: KNNPerConfig = field(default_factory=KNNPerConfig)
    feddbe: FedDBEConfig = field(default_factory=FedDBEConfig)
    ifca: IFCAConfig = field(default_factory=IFCAConfig)
    cfl: CFLConfig = field(default_factory=CFLConfig)
    fedem: FedEMConfig = field(default_factory=FedEMConfig)
    fedala: FedALAConfig = field(default_factory=FedALAConfig)
    ditto: DittoConfig = field(default_factory=DittoConfig)
    moon: MoonConfig = field(default_factory=MoonConfig)
    per_fedavg: PerFedAvgConfig = field(default_factory=PerFedAvgConfig)
    pfedme: PFedMeConfig = field(default_factory=PFedMeConfig)
    apple: AppleConfig = field(default_factory=AppleConfig)
    fedfomo: FedFomoConfig = field(default_factory=FedFomoConfig)
    fedamp: FedAMPConfig = field(default_factory=FedAMPConfig)
