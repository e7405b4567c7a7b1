"""The run-config keys of the personalised algorithms: a section each, or one for those that share it."""

from task.config.sections import Section, knob
from task.config.when import HEAD, When, algorithms


class FedBABUConfig(Section):
    """FedBABU, Oh, Kim and Yun 2022."""

    tune: str = knob(
        "all", "part that is fine-tuned before evaluation", choices=("all", "head", "body", "none")
    )


class LGFedAvgConfig(Section):
    """LG-FedAvg, Liang et al. 2020."""

    layers: int = knob(1, "last layers that are shared; all of the model's = FedAvg, 0 = local-only", low=0)


class FedRoDConfig(Section):
    """FedRoD, Chen and Chao 2022."""

    gamma: float = knob(1.0, "gamma, how much class counts correct the generic loss; 0 = FedAvg", low=0)


class APFLConfig(Section):
    """APFL, Deng, Kamani and Mahdavi 2020."""

    alpha: float = knob(0.5, "alpha at first, share of the client's own model", low=0, high=1)
    adaptive: bool = knob(True, "one gradient step of alpha a round; false = alpha stays")


class FedPHPConfig(Section):
    """FedPHP, Li et al. 2021."""

    lambda_: float = knob(
        0.1, "lambda, weight of what is learnt from the inherited model; 0 = FedAvg", low=0, high=1
    )
    transfer: str = knob(
        "kd",
        "what is learnt from it: its outputs (kd), or the distribution of its features (mmd)",
        choices=("kd", "mmd"),
    )
    temperature: float = knob(
        4.0, "transfer=kd: what its logits are divided by", above=0, when=When("fedphp.transfer", ("kd",))
    )
    mu: float = knob(0.9, "largest share that the inherited model keeps in a round", low=0, below=1)


class KNNPerConfig(Section):
    """kNN-Per, Marfoq et al. 2022."""

    neighbours: int = knob(5, "k, nearest training examples of the client that vote", low=1)
    lambda_: float = knob(0.5, "lambda, weight of the neighbours' vote; 0 = FedAvg's model", low=0, high=1)
    scale: float = knob(1.0, "sigma of exp(-|z - z_i|^2 / (d sigma)), d = width of the features", above=0)


class FedDBEConfig(Section):
    """FedDBE, Zhang et al. 2023."""

    kappa: float = knob(
        1.0, "kappa, weight of the distance of mean features; authors: 50 at rate 0.005", low=0
    )
    momentum: float = knob(1.0, "share of a batch in the running mean of features", above=0, high=1)


class IFCAConfig(Section):
    """IFCA, Ghosh et al. 2020."""

    clusters: int = knob(2, "p, cluster models; 1 = FedAvg", low=1, high=100)


class CFLConfig(Section):
    """CFL, Sattler, Müller and Samek 2021."""

    epsilon1: float = knob(
        0.4, "epsilon_1, |mean update| of a cluster below which it may be cut; 0 = never cut", low=0
    )
    epsilon2: float = knob(1.6, "epsilon_2, largest |update| of a cluster above which it may be cut", low=0)
    clusters: int = knob(10, "most clusters; 1 = never cut", low=1, high=100)
    warmup: int = knob(20, "rounds before the first cut", low=0)


class FedEMConfig(Section):
    """FedEM, Marfoq et al. 2021."""

    components: int = knob(3, "M, component models that each client mixes; 1 = FedAvg", low=1, high=100)


class PersonalConfig(Section):
    """What several personalised algorithms share."""

    layers: int = knob(
        1,
        "fedper, fedrep, fedbabu: K_P, layers of the head, the last ones",
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
    """Fine-tuning of a global model, the rows "-C" of FedALA's tables."""

    mu: float = knob(0.0, "mu of FedProx's term in training and fine-tuning; 0 = FedAvg's", low=0)


class FedALAConfig(Section, when=algorithms(lambda entry: "ala" in entry.stages, other=When("ala", (True,)))):
    """Adaptive local aggregation, Zhang et al. 2023: fedala, and ala = true in front of another."""

    eta: float = knob(1.0, "eta, learning rate of the weights W; 0 = W stays one, FedAvg", low=0)
    percent: float = knob(80.0, "s, percent of a client's examples that W is learnt on", above=0, high=100)
    layers: int = knob(1, "p, last layers of the shared part that have weights W; 0 = FedAvg", low=0)
    threshold: float = knob(0.01, "start phase: until the last losses' standard deviation is less", above=0)
    window: int = knob(10, "start phase: losses that count", low=2)
    max_epochs: int = knob(100, "start phase: most epochs", low=1)
    sampling: str = knob("block", "the s percent: consecutive or random", choices=("block", "random"))


class DittoConfig(Section):
    """Ditto, Li et al. 2021."""

    lambda_: float = knob(1.0, "lambda of the term lambda/2 |v - w^t|^2; 0 = local-only", low=0)


class MoonConfig(Section):
    """MOON, Li, He and Song 2021."""

    mu: float = knob(1.0, "mu, weight of the contrastive loss; 0 = FedAvg", low=0)
    temperature: float = knob(0.5, "tau of the contrastive loss", above=0)
    buffer: int = knob(1, "previous local models that are kept, the negatives", low=1, high=10)


class PerFedAvgConfig(Section):
    """Per-FedAvg, Fallah, Mokhtari and Ozdaglar 2020."""

    alpha: float = knob(0.01, "alpha, the step by which a client adapts; 0 = FedAvg on half batches", low=0)
    form: str = knob("fo", "second-order term: fo leaves it out, hf has it exactly", choices=("fo", "hf"))


class PFedMeConfig(Section):
    """pFedMe, Dinh, Tran and Nguyen 2020."""

    lambda_: float = knob(15.0, "lambda of the Moreau envelope", above=0)
    steps: int = knob(5, "K, steps towards theta on each batch", low=1)
    inner_lr: float = knob(0.01, "learning rate of these steps", above=0)
    beta: float = knob(1.0, "beta of the server's step; 1 = the mean of the local models", above=0)


class AppleConfig(Section):
    """APPLE, Luo and Wu 2022."""

    dr_lr: float = knob(0.001, "learning rate of the directed relationships p", low=0)
    mu: float = knob(0.1, "mu of the term mu/2 |p - p_0|^2, p_0 = n_j / n; twice the authors' mu", low=0)
    decay_rounds: int = knob(100, "L, rounds in which that term fades", low=0)


class FedFomoConfig(Section):
    """FedFomo, Zhang et al. 2021."""

    download: int = knob(5, "M, other clients' models that a client gets in a round; 0 = all", low=0)
    epsilon: float = knob(0.3, "share of them that is drawn at random instead of by affinity", low=0, high=1)
    validation: float = knob(
        0.2, "share of a client's training examples that the models are compared on", above=0, below=1
    )
    baseline: str = knob(
        "before",
        "what is compared with: the client's model before its last training, or after it",
        choices=("before", "after"),
    )


class FedAMPConfig(Section):
    """FedAMP, Huang et al. 2021."""

    alpha: float = knob(1.0, "alpha_k, step of the message passing", above=0)
    sigma: float = knob(100.0, "sigma of A(x) = 1 - exp(-x / sigma)", above=0)
    lambda_: float = knob(1.0, "lambda of the term lambda / (2 alpha) |w - u|^2", low=0)
