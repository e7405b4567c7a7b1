"""What editors and type checkers know of the strategies; `make docs` writes this file."""

from typing import TypedDict, Unpack

from strategies.shells import STRATEGIES as STRATEGIES
from strategies.shells import strategy_of as strategy_of
from strategies.strategy import Strategy as Strategy

__all__ = [
    "AFL",
    "CFL",
    "FSVRG",
    "GBDT",
    "GLM",
    "IFCA",
    "PCA",
    "STRATEGIES",
    "TERM",
    "AdaptiveTau",
    "Apple",
    "Bulyan",
    "CenteredClipping",
    "Centralised",
    "Coop",
    "CoxRegression",
    "DecentralizedPSGD",
    "DnC",
    "Ensemble",
    "FLTrust",
    "FSVRGSparse",
    "FedACG",
    "FedAMP",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAtt",
    "FedAvg",
    "FedAvgM",
    "FedBuff",
    "FedCM",
    "FedDBE",
    "FedDC",
    "FedDF",
    "FedDyn",
    "FedEM",
    "FedExP",
    "FedFomo",
    "FedMD",
    "FedNova",
    "FedProto",
    "FedProx",
    "FedSGD",
    "FedYogi",
    "GeometricMedian",
    "HierFAVG",
    "KMeans",
    "KaplanMeier",
    "Krum",
    "LeastSquares",
    "LocalOnly",
    "Meamed",
    "Median",
    "Mime",
    "MimeLite",
    "MultiKrum",
    "NbAFL",
    "PFedMe",
    "QFedAvg",
    "QFedSGD",
    "Scaffold",
    "SecureBoost",
    "SignSGD",
    "SplitNN",
    "Statistics",
    "Strategy",
    "TrimmedMean",
    "VerticalLogistic",
    "XGBBagging",
    "XGBCyclic",
]

class ServerArguments(TypedDict, total=False):
    """Arguments of every strategy."""

    fraction_train: float
    """C, share of the clients that train in a round; 0 = one client"""
    fraction_evaluate: float
    """share of the clients that evaluate; -1 = all if models are personal or nothing is trained, else 0"""
    fraction_heldout: float
    """share of the clients that never train and are evaluated at the end; 0 = none"""
    cross_evaluation: bool
    """after the last round, test each client's own model at every client; changes no model"""
    evaluate_every: int
    """rounds between central evaluations; 0 = never"""
    norms: bool
    """write the norm of each client's update to clients.jsonl; changes no model"""
    gradient_dissimilarity: bool
    """with each central evaluation, measure how much clients' gradients differ; changes no model"""
    client_evaluate_every: int
    """rounds between client-side evaluations"""
    selection: str
    """selection policy: uniform, proportional, power-of-choice, oort, fedcs, cycle"""
    stragglers: float
    """share of stragglers among the selected clients; they do x ~ U{1..E} epochs"""
    drop_stragglers: bool
    """drop stragglers instead of using their partial work"""
    min_replies: int
    """a round with fewer valid replies keeps the model; a link's default: a majority"""
    enough_replies: int
    """close a round after this number of replies; 0 = wait for all"""
    order_of_arrival: str
    """asynchronous: virtual = by simulated device speeds; real = as nodes answer, see `bouquet replay`"""
    round_timeout: float
    """seconds after which a round closes without the missing replies"""
    roll_call_timeout: float
    """seconds to wait for nodes and their client lists"""
    min_nodes: int
    """nodes that must be online before round 1; a link's default: a majority"""
    node_names: str
    """at a link: names of the nodes to run on, 'ward-1,ward-3'; '' = all"""
    max_update_norm: float
    """refuse a client's update with a larger L2 norm; 0 = no bound"""
    secagg: bool
    """secure aggregation: the server sees only sums over several nodes"""
    secagg_min_nodes: int
    """secagg: fewest nodes in a sum that the server may see"""
    secagg_threshold: int
    """secagg: threshold t of nodes needed to unmask a sum, more than half; 0 = floor(2n/3) + 1"""
    he: bool
    """homomorphic encryption: the server adds ciphertexts that only nodes can decrypt"""
    secagg_bits: int
    """secagg: bits of a sum; 96 = exact; with fewer, values are rounded by max-update-norm"""
    transcript: str
    """what is published so that anyone can check the rounds: sums, or also nodes' uploads
    (docs/howto/verify.md)"""
    target_accuracy: float
    """stop when this accuracy is reached; 0 = never"""
    plateau_rounds: int
    """early stopping: stop after this number of rounds without improvement; 0 = never"""
    plateau_delta: float
    """early stopping: smallest improvement that counts, of the accuracy, else of the loss"""
    seed: int
    """seed of all random numbers of the run, except those that protect privacy"""

class AdaptiveTau(Strategy):
    """FedAvg with as many local steps as pay under a budget; see `strategies.rules.adaptive_tau`.

    Clients: Bouquet's ClientApp.

    Args:
        budget: R, budget of the run, in units of resource
        resource: cost of a step and a round: model = the two keys below, or measured
        step_cost: c of resource=model, cost of a local step
        round_cost: b of resource=model, cost of a round without its steps
        phi: phi, weight of drift against few rounds; needs tuning
        tau_max: largest tau
        fixed_tau: fixed tau for every round; 0 = adaptive
    """

    def __init__(
        self,
        *,
        budget: float = 15.0,
        resource: str = "model",
        step_cost: float = 0.013,
        round_cost: float = 0.1316,
        phi: float = 0.025,
        tau_max: int = 100,
        fixed_tau: int = 0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class AFL(Strategy):
    """Agnostic federated learning; see `strategies.rules.afl`.

    Clients: Bouquet's ClientApp.

    Args:
        lambda_lr: gamma, step size of the clients' weights along their losses; 0 = FedAvg
        step: how the weights are kept at sum 1
    """

    def __init__(
        self,
        *,
        lambda_lr: float = 0.1,
        step: str = "projected",
        **server: Unpack[ServerArguments],
    ) -> None: ...

class Apple(Strategy):
    """Adaptive personalised cross-silo learning; see `strategies.rules.apple`.

    Clients: Bouquet's ClientApp.

    Args:
        dr_lr: learning rate of the directed relationships p
        mu: mu of the term mu/2 |p - p_0|^2, p_0 = n_j / n; twice the authors' mu
        decay_rounds: L, rounds over which that term decays
    """

    def __init__(
        self,
        *,
        dr_lr: float = 0.001,
        mu: float = 0.1,
        decay_rounds: int = 100,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class Bulyan(Strategy):
    """Bulyan; see `strategies.rules.bulyan`.

    Clients: any Flower ClientApp.

    Args:
        byzantine: f, malicious clients to withstand: a share of the selected ones, rounded down, or a
            count >= 1
        norm_bound: M, clip each client's update to this norm; 0 = none
        arc: adaptive clipping: clip about the 2 f largest updates to the next largest norm
        bucket: s, bucket size: clients that are averaged before the rule; 1 = none
        nnm: nearest-neighbour mixing: average each model with its nearest ones before the rule
        client_momentum: beta of client momentum: clients send the momentum of their updates; 0 = none
    """

    def __init__(
        self,
        *,
        byzantine: float = 0.1,
        norm_bound: float = 0.0,
        arc: bool = False,
        bucket: int = 1,
        nnm: bool = False,
        client_momentum: float = 0.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class CenteredClipping(Strategy):
    """Centered clipping; see `strategies.rules.centered_clipping`.

    Clients: any Flower ClientApp.

    Args:
        byzantine: f, malicious clients to withstand: a share of the selected ones, rounded down, or a
            count >= 1
        norm_bound: M, clip each client's update to this norm; 0 = none
        arc: adaptive clipping: clip about the 2 f largest updates to the next largest norm
        bucket: s, bucket size: clients that are averaged before the rule; 1 = none
        nnm: nearest-neighbour mixing: average each model with its nearest ones before the rule
        client_momentum: beta of client momentum: clients send the momentum of their updates; 0 = none
        radius: r, clipping radius: the most that a client moves v, as |w_k - w^t|; huge = plain mean
        iterations: L, clipping steps per round
    """

    def __init__(
        self,
        *,
        byzantine: float = 0.1,
        norm_bound: float = 0.0,
        arc: bool = False,
        bucket: int = 1,
        nnm: bool = False,
        client_momentum: float = 0.0,
        radius: float = 1.0,
        iterations: int = 1,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class Centralised(Strategy):
    """Rounds in which one client trains on all clients' data.

    Clients: Bouquet's ClientApp.
    """

    def __init__(
        self,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class CFL(Strategy):
    """Clustered federated learning; see `strategies.rules.cfl`.

    Clients: Bouquet's ClientApp.

    Args:
        epsilon1: epsilon_1, |mean update| of a cluster below which it may be split; 0 = never split
        epsilon2: epsilon_2, largest |update| of a cluster above which it may be split
        clusters: largest number of clusters; 1 = never split
        warmup: rounds before the first split
    """

    def __init__(
        self,
        *,
        epsilon1: float = 0.4,
        epsilon2: float = 1.6,
        clusters: int = 10,
        warmup: int = 20,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class Coop(Strategy):
    """Cooperative machine learning from mobile devices; see `strategies.rules.coop`.

    Clients: Bouquet's ClientApp.

    Args:
        lower: b_l, age difference below which a client keeps training; less than the clients at work
        upper: b_u, age difference above which a model is dropped, at least b_l
    """

    def __init__(
        self,
        *,
        lower: int = 1,
        upper: int = 100,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class CoxRegression(Strategy):
    """Cox's regression by exact sums; see `strategies.rules.cox`.

    Clients: Bouquet's ClientApp.

    Args:
        time: column of the time with its range, 'week(0..52)'
        step: grid of the times, from the range's start; times are rounded up to it
        until: end of follow-up: a later time counts as this one without the event; 0 = the range's end
        event: whether the event happened: 'arrest(0..1)', or two levels, 'status(alive|dead)'
        columns: what the hazard depends on, 'age(0..120), sex(Female|Male)'; first level = baseline
        strata: strata, each with a baseline hazard of its own: 'stage(1..4)'; '' = none
        ties: how events at one time count
        concordance: Harrell's c from so many bins of the risk score; 0 = none
    """

    def __init__(
        self,
        *,
        time: str = "",
        step: float = 1.0,
        until: float = 0.0,
        event: str = "",
        columns: str = "",
        strata: str = "",
        ties: str = "efron",
        concordance: int = 0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class DecentralizedPSGD(Strategy):
    """Decentralised parallel SGD; see `strategies.rules.d_psgd`.

    Clients: Bouquet's ClientApp.

    Args:
        route: the graph; one-peer = each client sends to one other, which changes each round
        degree: regular: number of neighbours of each client
        order: mix the trained models, or mix the received models and add the change by training
    """

    def __init__(
        self,
        *,
        route: str = "ring",
        degree: int = 3,
        order: str = "adapt-then-combine",
        **server: Unpack[ServerArguments],
    ) -> None: ...

class DnC(Strategy):
    """Divide and conquer; see `strategies.rules.dnc`.

    Clients: any Flower ClientApp.

    Args:
        byzantine: f, malicious clients to withstand: a share of the selected ones, rounded down, or a
            count >= 1
        norm_bound: M, clip each client's update to this norm; 0 = none
        arc: adaptive clipping: clip about the 2 f largest updates to the next largest norm
        bucket: s, bucket size: clients that are averaged before the rule; 1 = none
        nnm: nearest-neighbour mixing: average each model with its nearest ones before the rule
        client_momentum: beta of client momentum: clients send the momentum of their updates; 0 = none
        coordinates: b, number of random coordinates of each update
        filter: c, clients dropped in each iteration, as a multiple of f
        iterations: iterations; a client dropped in one is dropped for the round
    """

    def __init__(
        self,
        *,
        byzantine: float = 0.1,
        norm_bound: float = 0.0,
        arc: bool = False,
        bucket: int = 1,
        nnm: bool = False,
        client_momentum: float = 0.0,
        coordinates: int = 10000,
        filter: float = 1.0,
        iterations: int = 1,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class Ensemble(Strategy):
    """Rounds in which every client trains a member of its own; see `strategies.rules.ensemble`.

    Clients: Bouquet's ClientApp.

    Args:
        of: data of a member: its client's, or those of its whole site, with its own initial model
    """

    def __init__(
        self,
        *,
        of: str = "clients",
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedACG(Strategy):
    """Accelerated client gradient; see `strategies.rules.fedacg`.

    Clients: Bouquet's ClientApp.

    Args:
        lambda_: lambda, momentum of the model that clients start from; 0 = none
        beta: beta of the proximal term beta/2 |w - y|^2; twice the authors' 0.001
    """

    def __init__(
        self,
        *,
        lambda_: float = 0.85,
        beta: float = 0.002,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedAdagrad(Strategy):
    """Adagrad on the server; see `strategies.rules.fedopt`.

    Clients: any Flower ClientApp.

    Args:
        server_lr: eta of the server's step; the paper tunes it between 10^-2.5 and 10
        adagrad_beta1: decay of the first moment of fedadagrad; 0 = none
        tau: tau, adaptivity: v starts at tau^2, and eta m is divided by sqrt(v) + tau
        bias_correction: Kingma and Ba's form: v starts at 0; m and v are divided by 1 - beta^t
    """

    def __init__(
        self,
        *,
        server_lr: float = 0.1,
        adagrad_beta1: float = 0.0,
        tau: float = 0.001,
        bias_correction: bool = False,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedAdam(Strategy):
    """Adam on the server; see `strategies.rules.fedopt`.

    Clients: any Flower ClientApp.

    Args:
        server_lr: eta of the server's step; the paper tunes it between 10^-2.5 and 10
        beta1: decay of the first moment of fedadam and fedyogi; 0 = none
        beta2: decay of the second moment of fedadam and fedyogi
        tau: tau, adaptivity: v starts at tau^2, and eta m is divided by sqrt(v) + tau
        bias_correction: Kingma and Ba's form: v starts at 0; m and v are divided by 1 - beta^t
    """

    def __init__(
        self,
        *,
        server_lr: float = 0.1,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 0.001,
        bias_correction: bool = False,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedAMP(Strategy):
    """Attentive message passing; see `strategies.rules.fedamp`.

    Clients: Bouquet's ClientApp.

    Args:
        alpha: alpha_k, step of the message passing
        sigma: sigma of A(x) = 1 - exp(-x / sigma)
        lambda_: lambda of the term lambda / (2 alpha) |w - u|^2
    """

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        sigma: float = 100.0,
        lambda_: float = 1.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedAsync(Strategy):
    """Asynchronous federated optimisation; see `strategies.rules.fedasync`.

    Clients: Bouquet's ClientApp.

    Args:
        alpha: alpha, weight of an arriving model in the new one
        staleness: s(tau), factor on alpha for a model tau versions old
        poly_a: staleness=polynomial: a of (1 + tau)^-a
        hinge_a: staleness=hinge: a of 1 / (a (tau - b) + 1) if tau > b, else 1
        hinge_b: staleness=hinge: b, versions that do not count as stale
        rho: rho of the clients' proximal term rho/2 |w - w^v|^2; 0 = none
    """

    def __init__(
        self,
        *,
        alpha: float = 0.6,
        staleness: str = "polynomial",
        poly_a: float = 0.5,
        hinge_a: float = 10.0,
        hinge_b: int = 6,
        rho: float = 0.005,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedAtt(Strategy):
    """Attentive aggregation; see `strategies.rules.fedatt`.

    Clients: any Flower ClientApp.

    Args:
        epsilon: step along the attended difference; 1 = to the attended mean
        p: p of the norm of a layer's difference, over all its elements
        temperature: T of softmax(distance / T); 1 = the paper's, large = plain mean
        noise: beta, standard deviation of noise on the new model; no privacy proof
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.2,
        p: float = 2.0,
        temperature: float = 1.0,
        noise: float = 0.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedAvg(Strategy):
    """Federated averaging; see `strategies.rules.fedavg`.

    Clients: any Flower ClientApp.
    """

    def __init__(
        self,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedAvgM(Strategy):
    """Federated averaging with server momentum; see `strategies.rules.fedopt`.

    Clients: any Flower ClientApp.

    Args:
        server_lr: eta of the server's step; 1 = FedAvg at momentum 0
        momentum: beta of v <- beta v + delta (undamped); 0 = none
        nesterov: step by beta v + delta, as in the paper's runs, instead of v
    """

    def __init__(
        self,
        *,
        server_lr: float = 1.0,
        momentum: float = 0.9,
        nesterov: bool = True,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedBuff(Strategy):
    """Federated learning with buffered asynchronous aggregation; see `strategies.rules.fedbuff`.

    Clients: Bouquet's ClientApp.

    Args:
        buffer: K, updates per server step, at most the number of clients at work; 0 = half of it
        server_lr: eta_g of the server's step
        exponent: a of s = (1 + tau)^-a, weight of an update tau versions old; 0 = equal weights
    """

    def __init__(
        self,
        *,
        buffer: int = 0,
        server_lr: float = 1.0,
        exponent: float = 0.5,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedCM(Strategy):
    """Client-level momentum; see `strategies.rules.fedcm`.

    Clients: Bouquet's ClientApp.

    Args:
        alpha: alpha, weight of the client's own gradient; 1 = FedAvg of uniform weights
    """

    def __init__(
        self,
        *,
        alpha: float = 0.1,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedDBE(Strategy):
    """Domain bias eliminator; see `strategies.rules.feddbe`.

    Clients: Bouquet's ClientApp.

    Args:
        kappa: kappa, weight of the distance between mean features; authors: 50 at learning rate 0.005
        momentum: momentum of the running mean of features: share of the new batch
    """

    def __init__(
        self,
        *,
        kappa: float = 1.0,
        momentum: float = 1.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedDC(Strategy):
    """Local drift decoupling and correction; see `strategies.rules.feddc`.

    Clients: Bouquet's ClientApp.

    Args:
        alpha: alpha of the term alpha/2 |w - (w^t - h_k)|^2; no value equals FedAvg
    """

    def __init__(
        self,
        *,
        alpha: float = 0.01,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedDF(Strategy):
    """FedAvg whose mean learns from the clients' ensemble; see `strategies.rules.feddf`.

    Clients: Bouquet's ClientApp.

    Args:
        steps: N, distillation steps of the server each round; 0 = FedAvg
        lr: learning rate of Adam in these steps, decaying to 0 along a cosine
        batch_size: batch size of these steps
    """

    def __init__(
        self,
        *,
        steps: int = 100,
        lr: float = 0.001,
        batch_size: int = 128,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedDyn(Strategy):
    """Dynamic regularisation; see `strategies.rules.feddyn`.

    Clients: Bouquet's ClientApp.

    Args:
        alpha: alpha of the dynamic regulariser; 0 = FedAvg of uniform weights
    """

    def __init__(
        self,
        *,
        alpha: float = 0.01,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedEM(Strategy):
    """Federated expectation maximisation; see `strategies.rules.fedem`.

    Clients: Bouquet's ClientApp.

    Args:
        components: M, number of component models that each client mixes; 1 = FedAvg
    """

    def __init__(
        self,
        *,
        components: int = 3,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedExP(Strategy):
    """Federated averaging with an extrapolated step; see `strategies.rules.fedexp`.

    Clients: Bouquet's ClientApp.

    Args:
        epsilon: epsilon, in units of |Delta|^2; huge = FedAvg with uniform weights
    """

    def __init__(
        self,
        *,
        epsilon: float = 0.001,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedFomo(Strategy):
    """First-order model optimisation; see `strategies.rules.fedfomo`.

    Clients: Bouquet's ClientApp.

    Args:
        download: M, number of other clients' models that a client gets in a round; 0 = all
        epsilon: share of the M models that are drawn at random instead of by affinity
        validation: share of a client's training examples that are held out to compare the models
        baseline: reference model: the client's own before its last training, or after it
    """

    def __init__(
        self,
        *,
        download: int = 5,
        epsilon: float = 0.3,
        validation: float = 0.2,
        baseline: str = "before",
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedMD(Strategy):
    """Averages logits of public examples; see `strategies.rules.fedmd`.

    Clients: Bouquet's ClientApp.

    Args:
        pretrain_epochs: epochs on the labelled public examples before a client's first training
        digest_epochs: epochs of distillation of the consensus on the public examples; 0 = none
        digest_lr: learning rate of SGD on the public examples; 0 = learning-rate
    """

    def __init__(
        self,
        *,
        pretrain_epochs: int = 0,
        digest_epochs: int = 1,
        digest_lr: float = 0.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedNova(Strategy):
    """Normalised averaging; see `strategies.rules.fednova`.

    Clients: Bouquet's ClientApp.

    Args:
        mu: mu of the proximal term mu/2 |w - w^t|^2; 0 = none
    """

    def __init__(
        self,
        *,
        mu: float = 0.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedProto(Strategy):
    """Averages class prototypes; see `strategies.rules.fedproto`.

    Clients: Bouquet's ClientApp.

    Args:
        lambda_: lambda of the term lambda/f |h(x) - C|^2; 0 = local training only
        weights: weight of a client's prototype: its number of examples of the class, or 1 as in the
            authors' code
        least: fewest examples of a class for which a client sends a prototype
        predict: how clients predict in evaluations: with the model's head, or by the nearest global
            prototype
    """

    def __init__(
        self,
        *,
        lambda_: float = 1.0,
        weights: str = "examples",
        least: int = 1,
        predict: str = "head",
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedProx(Strategy):
    """Federated averaging with a proximal term; see `strategies.rules.fedprox`.

    Clients: any Flower ClientApp.

    Args:
        mu: mu of the proximal term mu/2 |w - w^t|^2; 0 = FedAvg
        adaptive: raise mu by 0.1 when the loss rises, lower it after the loss fell 5 times
        measure_gamma: measure how inexactly clients solve (gamma); costs two full local gradients a
            round
    """

    def __init__(
        self,
        *,
        mu: float = 0.01,
        adaptive: bool = False,
        measure_gamma: bool = False,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedSGD(Strategy):
    """Federated SGD by gradient upload; see `strategies.rules.fedsgd`.

    Clients: Bouquet's ClientApp.
    """

    def __init__(
        self,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FedYogi(Strategy):
    """Yogi on the server; see `strategies.rules.fedopt`.

    Clients: any Flower ClientApp.

    Args:
        server_lr: eta of the server's step; the paper tunes it between 10^-2.5 and 10
        beta1: decay of the first moment of fedadam and fedyogi; 0 = none
        beta2: decay of the second moment of fedadam and fedyogi
        tau: tau, adaptivity: v starts at tau^2, and eta m is divided by sqrt(v) + tau
        bias_correction: Kingma and Ba's form: v starts at 0; m and v are divided by 1 - beta^t
    """

    def __init__(
        self,
        *,
        server_lr: float = 0.1,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 0.001,
        bias_correction: bool = False,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FLTrust(Strategy):
    """FLTrust; see `strategies.rules.fltrust`.

    Clients: Bouquet's ClientApp.

    Args:
        root: name of the trusted client, which has the root data; '' = the first
    """

    def __init__(
        self,
        *,
        root: str = "",
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FSVRG(Strategy):
    """Federated SVRG, dense form; see `strategies.rules.fsvrg`.

    Clients: Bouquet's ClientApp.
    """

    def __init__(
        self,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class FSVRGSparse(Strategy):
    """Federated SVRG for sparse features; see `strategies.rules.fsvrg`.

    Clients: Bouquet's ClientApp.
    """

    def __init__(
        self,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class GBDT(Strategy):
    """Gradient-boosted trees by exact sums; see `strategies.rules.gbdt`.

    Clients: Bouquet's ClientApp.

    Args:
        columns: what trees split, with ranges or levels, 'age(0..120), sex(Female|Male)'
        target: what is predicted, with its range or all levels, 'ill(no|yes)'
        objective: auto = by the target: a number, two levels, more levels
        learning_rate: eta, by which each tree's output is multiplied
        growth: depth-wise = a question to all sites a level; leaf-wise = one a split
        max_depth: most splits from the root to a leaf; 0 = any, if leaf-wise
        max_leaves: most leaves of a tree
        max_bins: most bins of a column
        cuts: where numbers may be cut: at quantiles, rounded up to a grid of the range, or exactly
            those (some row's own values); ranges = in equal steps
        grid: steps of each range to which cuts are rounded up
        reg_lambda: lambda, L2 penalty of leaves
        reg_alpha: alpha, L1 penalty of leaves
        gamma: least gain of a split
        min_child_weight: least sum of second derivatives of a child
        min_child_count: fewest rows of a child and of a bin, over all sites
        subsample: share of rows that a tree is grown from, drawn by seed
        colsample: share of columns that a tree may split, drawn by seed
        row_key: column of numbers by which rows are drawn, 'id(0..1000000)'; '' = by client and place,
            so that the draw depends on who has a row
        held_out: share of rows that no tree is grown from, to measure the loss
        patience: early stopping: trees without a lower loss of the rows held out; the best number of
            trees stays; 0 = never
    """

    def __init__(
        self,
        *,
        columns: str = "",
        target: str = "",
        objective: str = "auto",
        learning_rate: float = 0.3,
        growth: str = "depth-wise",
        max_depth: int = 6,
        max_leaves: int = 31,
        max_bins: int = 64,
        cuts: str = "grid",
        grid: int = 1024,
        reg_lambda: float = 1.0,
        reg_alpha: float = 0.0,
        gamma: float = 0.0,
        min_child_weight: float = 1.0,
        min_child_count: int = 1,
        subsample: float = 1.0,
        colsample: float = 1.0,
        row_key: str = "",
        held_out: float = 0.0,
        patience: int = 0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class GeometricMedian(Strategy):
    """Geometric median; see `strategies.rules.geometric_median`.

    Clients: any Flower ClientApp.

    Args:
        byzantine: f, malicious clients to withstand: a share of the selected ones, rounded down, or a
            count >= 1
        nu: geometric-median: lower bound on distances; huge = plain mean
        iterations: geometric-median: largest number of Weiszfeld steps
        weighted: geometric-median: weight by the n_k that clients report, as the paper does
        norm_bound: M, clip each client's update to this norm; 0 = none
        arc: adaptive clipping: clip about the 2 f largest updates to the next largest norm
        bucket: s, bucket size: clients that are averaged before the rule; 1 = none
        nnm: nearest-neighbour mixing: average each model with its nearest ones before the rule
        client_momentum: beta of client momentum: clients send the momentum of their updates; 0 = none
    """

    def __init__(
        self,
        *,
        byzantine: float = 0.1,
        nu: float = 1e-06,
        iterations: int = 100,
        weighted: bool = False,
        norm_bound: float = 0.0,
        arc: bool = False,
        bucket: int = 1,
        nnm: bool = False,
        client_momentum: float = 0.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class GLM(Strategy):
    """A generalised linear model; see `strategies.rules.regression`.

    Clients: Bouquet's ClientApp.

    Args:
        columns: columns with their ranges or levels, 'age(0..120), sex(Female|Male)'; first level =
            baseline
        target: what is explained, with its range or two levels, 'ill(0..1)'
        family: family; link: identity, logit, log, log
        trials: binomial: column of the number of trials with its range, 'tests(1..400)'; '' = 1 each
        link: gamma: link
        offset: column that is added to eta as it is, with its range, 'base(-5..5)'
        exposure: column whose logarithm is added to eta, 'years(0..90)'
        frequency: column of how many alike rows a row stands for, 'count(1..50)'
        weights: column of the weight by which a row's variance is divided, 'size(0..9)'
        errors: robust errors: robust = each row by itself; site = clustered by site, with more sites
            than columns
    """

    def __init__(
        self,
        *,
        columns: str = "",
        target: str = "",
        family: str = "gaussian",
        trials: str = "",
        link: str = "log",
        offset: str = "",
        exposure: str = "",
        frequency: str = "",
        weights: str = "",
        errors: str = "robust",
        **server: Unpack[ServerArguments],
    ) -> None: ...

class HierFAVG(Strategy):
    """Client-edge-cloud federated averaging; see `strategies.rules.hierfavg`.

    Clients: any Flower ClientApp.

    Args:
        kappa2: kappa_2, edge aggregations per cloud aggregation; 1 = FedAvg
        edges: number of edges; clients are assigned to them by name
        pattern: regular expression for the part of a client's name that is its edge, '^[a-z]+'; '' =
            use edges
    """

    def __init__(
        self,
        *,
        kappa2: int = 2,
        edges: int = 2,
        pattern: str = "",
        **server: Unpack[ServerArguments],
    ) -> None: ...

class IFCA(Strategy):
    """Iterative federated clustering; see `strategies.rules.ifca`.

    Clients: Bouquet's ClientApp.

    Args:
        clusters: p, number of cluster models; 1 = FedAvg
    """

    def __init__(
        self,
        *,
        clusters: int = 2,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class KMeans(Strategy):
    """k-means by exact sums; see `strategies.rules.k_means`.

    Clients: Bouquet's ClientApp.

    Args:
        columns: columns of numbers with their ranges, 'age(0..120), bmi(10..80)'
        clusters: number of clusters
        start: first centres in the columns' order, '54,130; 61,150'; '' = spread by seed
        scaling: what columns are divided by: none, or sd = their standard deviations
    """

    def __init__(
        self,
        *,
        columns: str = "",
        clusters: int = 3,
        start: str = "",
        scaling: str = "none",
        **server: Unpack[ServerArguments],
    ) -> None: ...

class KaplanMeier(Strategy):
    """Survival curves by exact counts; see `strategies.rules.kaplan_meier`.

    Clients: Bouquet's ClientApp.

    Args:
        time: column of the time with its range, 'week(0..52)'
        step: grid of the times, from the range's start; times are rounded up to it
        until: end of follow-up: a later time counts as this one without the event; 0 = the range's end
        event: whether the event happened: 'arrest(0..1)', or two levels, 'status(alive|dead)'
        groups: curves to draw and compare, by levels or whole numbers: 'sex(Female|Male)'
        strata: strata, each with a baseline hazard of its own: 'stage(1..4)'; '' = none
    """

    def __init__(
        self,
        *,
        time: str = "",
        step: float = 1.0,
        until: float = 0.0,
        event: str = "",
        groups: str = "",
        strata: str = "",
        **server: Unpack[ServerArguments],
    ) -> None: ...

class Krum(Strategy):
    """Krum; see `strategies.rules.krum`.

    Clients: any Flower ClientApp.

    Args:
        byzantine: f, malicious clients to withstand: a share of the selected ones, rounded down, or a
            count >= 1
        norm_bound: M, clip each client's update to this norm; 0 = none
        arc: adaptive clipping: clip about the 2 f largest updates to the next largest norm
        bucket: s, bucket size: clients that are averaged before the rule; 1 = none
        nnm: nearest-neighbour mixing: average each model with its nearest ones before the rule
        client_momentum: beta of client momentum: clients send the momentum of their updates; 0 = none
    """

    def __init__(
        self,
        *,
        byzantine: float = 0.1,
        norm_bound: float = 0.0,
        arc: bool = False,
        bucket: int = 1,
        nnm: bool = False,
        client_momentum: float = 0.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class LeastSquares(Strategy):
    """Least squares, with a penalty ridge regression; see `strategies.rules.regression`.

    Clients: Bouquet's ClientApp.

    Args:
        columns: columns with their ranges or levels, 'age(0..120), sex(Female|Male)'; first level =
            baseline
        target: what is explained, with its range or two levels, 'ill(0..1)'
        frequency: column of how many alike rows a row stands for, 'count(1..50)'
        weights: column of the weight by which a row's variance is divided, 'size(0..9)'
        errors: robust errors: robust = each row by itself; site = clustered by site, with more sites
            than columns
        penalty: lambda of ridge, in the columns' own units; not of the intercept
    """

    def __init__(
        self,
        *,
        columns: str = "",
        target: str = "",
        frequency: str = "",
        weights: str = "",
        errors: str = "robust",
        penalty: float = 0.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class LocalOnly(Strategy):
    """Rounds in which every client trains for itself.

    Clients: Bouquet's ClientApp.
    """

    def __init__(
        self,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class Meamed(Strategy):
    """Mean around the median; see `strategies.rules.meamed`.

    Clients: any Flower ClientApp.

    Args:
        byzantine: f, malicious clients to withstand: a share of the selected ones, rounded down, or a
            count >= 1
        norm_bound: M, clip each client's update to this norm; 0 = none
        arc: adaptive clipping: clip about the 2 f largest updates to the next largest norm
        bucket: s, bucket size: clients that are averaged before the rule; 1 = none
        nnm: nearest-neighbour mixing: average each model with its nearest ones before the rule
        client_momentum: beta of client momentum: clients send the momentum of their updates; 0 = none
    """

    def __init__(
        self,
        *,
        byzantine: float = 0.1,
        norm_bound: float = 0.0,
        arc: bool = False,
        bucket: int = 1,
        nnm: bool = False,
        client_momentum: float = 0.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class Median(Strategy):
    """Coordinate-wise median; see `strategies.rules.median`.

    Clients: any Flower ClientApp.

    Args:
        byzantine: f, malicious clients to withstand: a share of the selected ones, rounded down, or a
            count >= 1
        norm_bound: M, clip each client's update to this norm; 0 = none
        arc: adaptive clipping: clip about the 2 f largest updates to the next largest norm
        bucket: s, bucket size: clients that are averaged before the rule; 1 = none
        nnm: nearest-neighbour mixing: average each model with its nearest ones before the rule
        client_momentum: beta of client momentum: clients send the momentum of their updates; 0 = none
    """

    def __init__(
        self,
        *,
        byzantine: float = 0.1,
        norm_bound: float = 0.0,
        arc: bool = False,
        bucket: int = 1,
        nnm: bool = False,
        client_momentum: float = 0.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class Mime(Strategy):
    """Mime, whose rounds have FSVRG's two phases; see `strategies.rules.mime`.

    Clients: Bouquet's ClientApp.

    Args:
        beta: beta of the server's momentum; 0 = FedAvg (mimelite)
    """

    def __init__(
        self,
        *,
        beta: float = 0.9,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class MimeLite(Strategy):
    """Mime without its correction; see `strategies.rules.mime`.

    Clients: Bouquet's ClientApp.

    Args:
        beta: beta of the server's momentum; 0 = FedAvg (mimelite)
    """

    def __init__(
        self,
        *,
        beta: float = 0.9,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class MultiKrum(Strategy):
    """Multi-Krum; see `strategies.rules.krum`.

    Clients: any Flower ClientApp.

    Args:
        byzantine: f, malicious clients to withstand: a share of the selected ones, rounded down, or a
            count >= 1
        m: multi-krum: clients averaged, at most K - f; 0 = K - f - 2
        norm_bound: M, clip each client's update to this norm; 0 = none
        arc: adaptive clipping: clip about the 2 f largest updates to the next largest norm
        bucket: s, bucket size: clients that are averaged before the rule; 1 = none
        nnm: nearest-neighbour mixing: average each model with its nearest ones before the rule
        client_momentum: beta of client momentum: clients send the momentum of their updates; 0 = none
    """

    def __init__(
        self,
        *,
        byzantine: float = 0.1,
        m: int = 0,
        norm_bound: float = 0.0,
        arc: bool = False,
        bucket: int = 1,
        nnm: bool = False,
        client_momentum: float = 0.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class NbAFL(Strategy):
    """Noising before model aggregation, as published: no protection; see `strategies.rules.nbafl`.

    Clients: Bouquet's ClientApp.

    Args:
        clip: C, largest norm of a local model, all parameters together
        epsilon: the paper's epsilon, which is not valid
        delta: the paper's delta, of c = sqrt(2 ln(1.25 / delta))
        exposures: L, uploads of a client that the paper's epsilon counts
        mu: mu of the proximal term mu/2 |w - w^t|^2; 0 = none
    """

    def __init__(
        self,
        *,
        clip: float = 15.0,
        epsilon: float = 100.0,
        delta: float = 0.01,
        exposures: int = 1,
        mu: float = 0.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class PCA(Strategy):
    """Principal components by exact sums; see `strategies.rules.pca`.

    Clients: Bouquet's ClientApp.

    Args:
        columns: columns of numbers with their ranges, 'age(0..120), bmi(10..80)'
        components: how many components; 0 = as many as columns
        scaling: what columns are divided by: none, or sd = their standard deviations
    """

    def __init__(
        self,
        *,
        columns: str = "",
        components: int = 0,
        scaling: str = "none",
        **server: Unpack[ServerArguments],
    ) -> None: ...

class PFedMe(Strategy):
    """Steps towards the mean of the local models; see `strategies.rules.pfedme`.

    Clients: Bouquet's ClientApp.

    Args:
        lambda_: lambda of the Moreau envelope
        steps: K, steps towards theta on each batch
        inner_lr: learning rate of the steps towards theta
        beta: beta of the server's step; 1 = the mean of the local models
    """

    def __init__(
        self,
        *,
        lambda_: float = 15.0,
        steps: int = 5,
        inner_lr: float = 0.01,
        beta: float = 1.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class QFedAvg(Strategy):
    """Fair federated averaging; see `strategies.rules.qfedavg`.

    Clients: Bouquet's ClientApp.

    Args:
        q: q of a client's weight F_k^q, from its loss; 0 = plain mean of local models
    """

    def __init__(
        self,
        *,
        q: float = 1.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class QFedSGD(Strategy):
    """Fair federated SGD by gradient upload; see `strategies.rules.qfedavg`.

    Clients: Bouquet's ClientApp.

    Args:
        q: q of a client's weight F_k^q, from its loss; 0 = plain mean of local models
    """

    def __init__(
        self,
        *,
        q: float = 1.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class Scaffold(Strategy):
    """Stochastic controlled averaging; see `strategies.rules.scaffold`.

    Clients: Bouquet's ClientApp.

    Args:
        option: new control variate: I = full gradient at x, II = from the steps
        server_lr: eta_g of the server's step; 1 = the mean of the local models
    """

    def __init__(
        self,
        *,
        option: str = "II",
        server_lr: float = 1.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class SecureBoost(Strategy):
    """Boosted trees over parties; see `strategies.rules.secureboost`.

    Clients: Bouquet's ClientApp.

    Args:
        parties: names of the parties, 'bank,shop'; '' = all clients that are online
        key_bits: size of a key in bits, n_k; 0 = no encryption, to compare
        objective: auto = by the target: a number, two levels, more levels
        learning_rate: eta, by which each tree's output is multiplied
        growth: depth-wise = a question to all sites a level; leaf-wise = one a split
        max_depth: most splits from the root to a leaf; 0 = any, if leaf-wise
        max_leaves: most leaves of a tree
        max_bins: most bins of a column
        reg_lambda: lambda, L2 penalty of leaves
        reg_alpha: alpha, L1 penalty of leaves
        gamma: least gain of a split
        min_child_weight: least sum of second derivatives of a child
        min_child_count: fewest rows of a child and of a bin, over all sites
        subsample: share of rows that a tree is grown from, drawn by seed
        colsample: share of columns that a tree may split, drawn by seed
        held_out: share of rows that no tree is grown from, to measure the loss
        patience: early stopping: trees without a lower loss of the rows held out; the best number of
            trees stays; 0 = never
    """

    def __init__(
        self,
        *,
        parties: str = "",
        key_bits: int = 2048,
        objective: str = "auto",
        learning_rate: float = 0.3,
        growth: str = "depth-wise",
        max_depth: int = 6,
        max_leaves: int = 31,
        max_bins: int = 64,
        reg_lambda: float = 1.0,
        reg_alpha: float = 0.0,
        gamma: float = 0.0,
        min_child_weight: float = 1.0,
        min_child_count: int = 1,
        subsample: float = 1.0,
        colsample: float = 1.0,
        held_out: float = 0.0,
        patience: int = 0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class SignSGD(Strategy):
    """signSGD with majority vote; see `strategies.rules.signsgd`.

    Clients: Bouquet's ClientApp.
    """

    def __init__(
        self,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class SplitNN(Strategy):
    """Parties with other columns of the same people; see `strategies.rules.splitnn`.

    Clients: Bouquet's ClientApp.

    Args:
        cut: c, outputs of each party's bottom model, which are sent
        hidden: hidden ReLU units of the top model, at the party with the labels; 0 = none
        window: S, batches per exchange; 0 = a whole epoch; 1 with vertical.local=1 = centralised
        local: Q, passes over a window's batches between two exchanges
        standardise: each party standardises its columns by their mean and deviation
        parties: names of the parties, 'bank,shop'; '' = all clients that are online
        defence: noise on the gradients that the party with the labels sends
        noise: defence=gaussian: standard deviation, in units of the batch's largest row gradient norm
        nopeek: alpha of NoPeek's term alpha dCor(X_k, A_k) in each party's loss; 0 = none
    """

    def __init__(
        self,
        *,
        cut: int = 16,
        hidden: int = 32,
        window: int = 0,
        local: int = 1,
        standardise: bool = True,
        parties: str = "",
        defence: str = "none",
        noise: float = 3.0,
        nopeek: float = 0.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class Statistics(Strategy):
    """Descriptive statistics by exact sums; see `strategies.rules.statistics`.

    Clients: Bouquet's ClientApp.

    Args:
        columns: columns with their ranges or levels, 'age(0..120), sex(Female|Male)'
        quantiles: which quantiles of numbers; 0 = least, 1 = largest; '' = none
        bins: most bars of a histogram, a power of two; 0 = none
        cross: tables of two categories each, 'sex*job, sex*ward'
        correlation: correlations of the numbers, over rows that lack none of them
        by_site: counts, means and levels of each site besides the pooled ones
        site_quantiles: quantiles and histograms of each site, too, as far as its owner lets its range
            be cut
        pooled_least: with secagg, persons of all sites together that let a cell be shown though a site
            has few in it, where owners allow it; 0 = never
    """

    def __init__(
        self,
        *,
        columns: str = "",
        quantiles: str = "0, 0.25, 0.5, 0.75, 1",
        bins: int = 16,
        cross: str = "",
        correlation: bool = False,
        by_site: bool = False,
        site_quantiles: bool = False,
        pooled_least: int = 0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class TERM(Strategy):
    """Tilted empirical risk minimisation; see `strategies.rules.term`.

    Clients: Bouquet's ClientApp.

    Args:
        t: t, tilt: > 0 favours clients with large losses, < 0 suppresses them; 0 = plain mean
    """

    def __init__(
        self,
        *,
        t: float = 0.1,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class TrimmedMean(Strategy):
    """Coordinate-wise trimmed mean; see `strategies.rules.median`.

    Clients: any Flower ClientApp.

    Args:
        byzantine: f, malicious clients to withstand: a share of the selected ones, rounded down, or a
            count >= 1
        trim: trimmed-mean: beta, share cut at each end; 0 = plain mean
        norm_bound: M, clip each client's update to this norm; 0 = none
        arc: adaptive clipping: clip about the 2 f largest updates to the next largest norm
        bucket: s, bucket size: clients that are averaged before the rule; 1 = none
        nnm: nearest-neighbour mixing: average each model with its nearest ones before the rule
        client_momentum: beta of client momentum: clients send the momentum of their updates; 0 = none
    """

    def __init__(
        self,
        *,
        byzantine: float = 0.1,
        trim: float = 0.2,
        norm_bound: float = 0.0,
        arc: bool = False,
        bucket: int = 1,
        nnm: bool = False,
        client_momentum: float = 0.0,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class VerticalLogistic(Strategy):
    """Encrypted logistic regression over parties; see `strategies.rules.vertical_logistic`.

    Clients: Bouquet's ClientApp.

    Args:
        standardise: each party standardises its columns by their mean and deviation
        parties: names of the parties, 'bank,shop'; '' = all clients that are online
        key_bits: size of a key in bits, n_k; 0 = no encryption, to compare
    """

    def __init__(
        self,
        *,
        standardise: bool = True,
        parties: str = "",
        key_bits: int = 2048,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class XGBBagging(Strategy):
    """Trees of all clients in each round; see `strategies.rules.xgb`.

    Clients: Bouquet's ClientApp.

    Args:
        columns: columns with their ranges or levels, 'age(0..120), sex(Female|Male)'
        target: what is predicted, with its range or levels, 'ill(0..1)', 'stage(1|2|3)'
        objective: loss: auto = logistic for two levels, softmax for more, squared-error for a range
        eta: learning rate; in xgb-bagging a round adds the trees of all clients
        max_depth: largest depth of a tree
        min_child_weight: least sum of second derivatives in a leaf
        reg_lambda: L2 penalty of leaves, XGBoost's lambda
        reg_alpha: L1 penalty of leaves, XGBoost's alpha
        gamma: least gain of a split
        subsample: share of a client's rows for each tree
        colsample_bytree: share of the columns for each tree
        max_bin: most bins of a column
    """

    def __init__(
        self,
        *,
        columns: str = "",
        target: str = "",
        objective: str = "auto",
        eta: float = 0.3,
        max_depth: int = 6,
        min_child_weight: float = 1.0,
        reg_lambda: float = 1.0,
        reg_alpha: float = 0.0,
        gamma: float = 0.0,
        subsample: float = 1.0,
        colsample_bytree: float = 1.0,
        max_bin: int = 256,
        **server: Unpack[ServerArguments],
    ) -> None: ...

class XGBCyclic(Strategy):
    """Trees of one client in each round; see `strategies.rules.xgb`.

    Clients: Bouquet's ClientApp.

    Args:
        columns: columns with their ranges or levels, 'age(0..120), sex(Female|Male)'
        target: what is predicted, with its range or levels, 'ill(0..1)', 'stage(1|2|3)'
        objective: loss: auto = logistic for two levels, softmax for more, squared-error for a range
        eta: learning rate; in xgb-bagging a round adds the trees of all clients
        max_depth: largest depth of a tree
        min_child_weight: least sum of second derivatives in a leaf
        reg_lambda: L2 penalty of leaves, XGBoost's lambda
        reg_alpha: L1 penalty of leaves, XGBoost's alpha
        gamma: least gain of a split
        subsample: share of a client's rows for each tree
        colsample_bytree: share of the columns for each tree
        max_bin: most bins of a column
        order: order in which clients take turns
    """

    def __init__(
        self,
        *,
        columns: str = "",
        target: str = "",
        objective: str = "auto",
        eta: float = 0.3,
        max_depth: int = 6,
        min_child_weight: float = 1.0,
        reg_lambda: float = 1.0,
        reg_alpha: float = 0.0,
        gamma: float = 0.0,
        subsample: float = 1.0,
        colsample_bytree: float = 1.0,
        max_bin: int = 256,
        order: str = "names",
        **server: Unpack[ServerArguments],
    ) -> None: ...
