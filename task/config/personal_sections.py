"""The run-config keys of personalised algorithms that came later; the others' are in `algorithm_sections`."""

from task.config.sections import Section, knob


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
    temperature: float = knob(4.0, "transfer=kd: what its logits are divided by", above=0)
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


class FedEMConfig(Section):
    """FedEM, Marfoq et al. 2021."""

    components: int = knob(3, "M, component models that each client mixes; 1 = FedAvg", low=1, high=100)


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
