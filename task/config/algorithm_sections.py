"""The run-config keys of the algorithms, a section each; see `personal_sections` for personalised ones."""

import math
from dataclasses import dataclass, field

from task.config.sections import OPTIMIZERS, Section, knob
from task.config.when import When
from task.numerics.graphs import ROUTES


class AdamConfig(Section, when=When("optimizer", OPTIMIZERS[1:])):
    """The local optimizers adam, Kingma and Ba 2015, and adamw, Loshchilov and Hutter 2019."""

    beta1: float = knob(0.9, "decay of the first moment", low=0, below=1)
    beta2: float = knob(0.999, "decay of the second moment", low=0, below=1)
    epsilon: float = knob(1e-8, "epsilon, added to the root of the second moment", above=0)


class FedProxConfig(Section):
    """FedProx, Li et al. 2020."""

    mu: float = knob(0.01, "mu of the proximal term mu/2 |w - w^t|^2; 0 = FedAvg", low=0)
    adaptive: bool = knob(False, "raise mu by 0.1 when the loss rises, lower it after the loss fell 5 times")
    measure_gamma: bool = knob(
        False, "measure how inexactly clients solve (gamma); costs two full local gradients a round"
    )


class FedAvgMConfig(Section):
    """FedAvgM, Hsu et al. 2019."""

    server_lr: float = knob(1.0, "eta of the server's step; 1 = FedAvg at momentum 0", above=0)
    momentum: float = knob(0.9, "beta of v <- beta v + delta (undamped); 0 = none", low=0, below=1)
    nesterov: bool = knob(True, "step by beta v + delta, as in the paper's runs, instead of v")


class FedOptConfig(Section):
    """FedAdagrad, FedAdam and FedYogi, Reddi et al. 2021."""

    server_lr: float = knob(
        0.1, "eta of the server's step; the paper tunes it between 10^-2.5 and 10", above=0
    )
    beta1: float = knob(0.9, "decay of the first moment of fedadam and fedyogi; 0 = none", low=0, below=1)
    adagrad_beta1: float = knob(0.0, "decay of the first moment of fedadagrad; 0 = none", low=0, below=1)
    beta2: float = knob(0.99, "decay of the second moment of fedadam and fedyogi", low=0, below=1)
    tau: float = knob(
        0.001, "tau, adaptivity: v starts at tau^2, and eta m is divided by sqrt(v) + tau", above=0
    )
    bias_correction: bool = knob(
        False, "Kingma and Ba's form: v starts at 0; m and v are divided by 1 - beta^t"
    )


class FedAttConfig(Section):
    """FedAtt, Ji et al. 2019."""

    epsilon: float = knob(1.2, "step along the attended difference; 1 = to the attended mean", above=0)
    p: float = knob(2.0, "p of the norm of a layer's difference, over all its elements", low=1, high=10)
    temperature: float = knob(1.0, "T of softmax(distance / T); 1 = the paper's, large = plain mean", above=0)
    noise: float = knob(0.0, "beta, standard deviation of noise on the new model; no privacy proof", low=0)


class ScaffoldConfig(Section):
    """SCAFFOLD, Karimireddy et al. 2020."""

    option: str = knob(
        "II", "new control variate: I = full gradient at x, II = from the steps", choices=("I", "II")
    )
    server_lr: float = knob(1.0, "eta_g of the server's step; 1 = the mean of the local models", above=0)


class FedNovaConfig(Section):
    """FedNova, Wang et al. 2020."""

    mu: float = knob(0.0, "mu of the proximal term mu/2 |w - w^t|^2; 0 = none", low=0)


class AdaptiveTauConfig(Section):
    """Adaptive local steps under a resource budget, Wang et al. 2019."""

    budget: float = knob(15.0, "R, budget of the run, in units of resource", above=0)
    resource: str = knob(
        "model",
        "cost of a step and a round: model = the two keys below, or measured",
        choices=("model", "seconds", "bytes"),
    )
    step_cost: float = knob(
        0.013,
        "c of resource=model, cost of a local step",
        low=0,
        when=When("adaptive-tau.resource", ("model",)),
    )
    round_cost: float = knob(
        0.1316,
        "b of resource=model, cost of a round without its steps",
        above=0,
        when=When("adaptive-tau.resource", ("model",)),
    )
    phi: float = knob(0.025, "phi, weight of drift against few rounds; needs tuning", above=0)
    tau_max: int = knob(100, "largest tau", low=1, when=When("adaptive-tau.fixed-tau", (0,)))
    fixed_tau: int = knob(0, "fixed tau for every round; 0 = adaptive", low=0)


class QFFLConfig(Section):
    """q-FedAvg and q-FedSGD, Li et al. 2020."""

    q: float = knob(
        1.0, "q of a client's weight F_k^q, from its loss; 0 = plain mean of local models", low=0, high=100
    )


class FedBuffConfig(Section):
    """FedBuff, Nguyen et al. 2022; fraction-train is the share of clients that train at the same time."""

    buffer: int = knob(
        0, "K, updates per server step, at most the number of clients at work; 0 = half of it", low=0
    )
    server_lr: float = knob(1.0, "eta_g of the server's step", above=0)
    exponent: float = knob(
        0.5, "a of s = (1 + tau)^-a, weight of an update tau versions old; 0 = equal weights", low=0
    )


class FedAsyncConfig(Section):
    """FedAsync, Xie et al. 2019; fraction-train is the share of clients that train at the same time."""

    alpha: float = knob(0.6, "alpha, weight of an arriving model in the new one", above=0, high=1)
    staleness: str = knob(
        "polynomial",
        "s(tau), factor on alpha for a model tau versions old",
        choices=("constant", "polynomial", "hinge"),
    )
    poly_a: float = knob(
        0.5,
        "staleness=polynomial: a of (1 + tau)^-a",
        low=0,
        when=When("fedasync.staleness", ("polynomial",)),
    )
    hinge_a: float = knob(
        10.0,
        "staleness=hinge: a of 1 / (a (tau - b) + 1) if tau > b, else 1",
        above=0,
        when=When("fedasync.staleness", ("hinge",)),
    )
    hinge_b: int = knob(
        6,
        "staleness=hinge: b, versions that do not count as stale",
        low=0,
        when=When("fedasync.staleness", ("hinge",)),
    )
    rho: float = knob(0.005, "rho of the clients' proximal term rho/2 |w - w^v|^2; 0 = none", low=0)


class CoopConfig(Section):
    """CO-OP, Wang 2017; fraction-train is the share of clients that train at the same time."""

    lower: int = knob(
        1, "b_l, age difference below which a client keeps training; less than the clients at work", low=0
    )
    upper: int = knob(100, "b_u, age difference above which a model is dropped, at least b_l", low=0)


class AFLConfig(Section):
    """Agnostic federated learning, Mohri et al. 2019."""

    lambda_lr: float = knob(
        0.1, "gamma, step size of the clients' weights along their losses; 0 = FedAvg", low=0
    )
    step: str = knob("projected", "how the weights are kept at sum 1", choices=("projected", "exponentiated"))


class TERMConfig(Section):
    """TERM, Li et al. 2021."""

    t: float = knob(
        0.1,
        "t, tilt: > 0 favours clients with large losses, < 0 suppresses them; 0 = plain mean",
        low=-1e3,
        high=1e3,
    )


class FedDCConfig(Section):
    """FedDC, Gao et al. 2022."""

    alpha: float = knob(0.01, "alpha of the term alpha/2 |w - (w^t - h_k)|^2; no value equals FedAvg", low=0)


class FedDynConfig(Section):
    """FedDyn, Acar et al. 2021."""

    alpha: float = knob(0.01, "alpha of the dynamic regulariser; 0 = FedAvg of uniform weights", low=0)


class FedACGConfig(Section):
    """FedACG, Kim et al. 2024."""

    lambda_: float = knob(
        0.85, "lambda, momentum of the model that clients start from; 0 = none", low=0, below=1
    )
    beta: float = knob(0.002, "beta of the proximal term beta/2 |w - y|^2; twice the authors' 0.001", low=0)


class FedCMConfig(Section):
    """FedCM, Xu et al. 2021."""

    alpha: float = knob(
        0.1, "alpha, weight of the client's own gradient; 1 = FedAvg of uniform weights", above=0, high=1
    )


class FedLCConfig(Section):
    """FedLC, Zhang et al. 2022."""

    tau: float = knob(
        1.0, "tau of tau n_c^(-1/4), subtracted from the logit of class c; 0 = FedAvg", low=0, high=100
    )


class FedNTDConfig(Section):
    """FedNTD, Lee et al. 2022."""

    beta: float = knob(1.0, "beta, weight of the not-true distillation; 0 = FedAvg", low=0)
    temperature: float = knob(1.0, "T, temperature of the distillation", above=0)


class MimeConfig(Section):
    """Mime and MimeLite, Karimireddy et al. 2021."""

    beta: float = knob(0.9, "beta of the server's momentum; 0 = FedAvg (mimelite)", low=0, below=1)


class SamConfig(Section, switch="rho"):
    """Sharpness-aware local steps (FedSAM, FedASAM), for any algorithm with local steps."""

    rho: float = knob(
        0.0, "rho, length of the ascent before each gradient, which costs a second pass; 0 = off", low=0
    )
    form: str = knob(
        "normalised",
        "ascent by rho in the gradient's direction, by rho times the gradient, or by rho scaled by "
        "the weights",
        choices=("normalised", "plain", "adaptive"),
    )


class NbAFLConfig(Section):
    """NbAFL as published, Wei et al. 2020: it does not protect, see docs/howto/privacy.md."""

    clip: float = knob(15.0, "C, largest norm of a local model, all parameters together", above=0, high=1e9)
    epsilon: float = knob(100.0, "the paper's epsilon, which is not valid", above=0, high=1e100)
    delta: float = knob(0.01, "the paper's delta, of c = sqrt(2 ln(1.25 / delta))", above=0, below=1)
    exposures: int = knob(1, "L, uploads of a client that the paper's epsilon counts", low=1)
    mu: float = knob(0.0, "mu of the proximal term mu/2 |w - w^t|^2; 0 = none", low=0)


class FedExPConfig(Section):
    """FedExP, Jhunjhunwala et al. 2023."""

    epsilon: float = knob(1e-3, "epsilon, in units of |Delta|^2; huge = FedAvg with uniform weights", above=0)


class RobustConfig(Section):
    """The robust rules, and the steps before them."""

    byzantine: float = knob(
        0.1,
        "f, malicious clients to withstand: a share of the selected ones, rounded down, or a count >= 1",
        low=0,
    )
    trim: float = knob(0.2, "trimmed-mean: beta, share cut at each end; 0 = plain mean", low=0, below=0.5)
    m: int = knob(0, "multi-krum: clients averaged, at most K - f; 0 = K - f - 2", low=0)
    nu: float = knob(1e-6, "geometric-median: lower bound on distances; huge = plain mean", above=0)
    iterations: int = knob(100, "geometric-median: largest number of Weiszfeld steps", low=1)
    weighted: bool = knob(False, "geometric-median: weight by the n_k that clients report, as the paper does")

    norm_bound: float = knob(0.0, "M, clip each client's update to this norm; 0 = none", low=0)
    arc: bool = knob(False, "adaptive clipping: clip about the 2 f largest updates to the next largest norm")
    bucket: int = knob(1, "s, bucket size: clients that are averaged before the rule; 1 = none", low=1)
    nnm: bool = knob(
        False, "nearest-neighbour mixing: average each model with its nearest ones before the rule"
    )
    client_momentum: float = knob(
        0.0, "beta of client momentum: clients send the momentum of their updates; 0 = none", low=0, below=1
    )

    def f(self, asked: int) -> int:
        """Return f for a round with this number of selected clients."""
        return int(self.byzantine if self.byzantine >= 1 else math.floor(self.byzantine * asked + 1e-9))


class CenteredClippingConfig(Section):
    """Centered clipping, Karimireddy et al. 2021."""

    radius: float = knob(
        1.0, "r, clipping radius: the most that a client moves v, as |w_k - w^t|; huge = plain mean", above=0
    )
    iterations: int = knob(1, "L, clipping steps per round", low=1)


class DnCConfig(Section):
    """Divide and conquer, Shejwalkar and Houmansadr 2021."""

    coordinates: int = knob(10_000, "b, number of random coordinates of each update", low=1)
    filter: float = knob(1.0, "c, clients dropped in each iteration, as a multiple of f", low=0)
    iterations: int = knob(1, "iterations; a client dropped in one is dropped for the round", low=1)


class FLTrustConfig(Section):
    """FLTrust, Cao et al. 2021."""

    root: str = knob("", 'name of the trusted client, which has the root data; "" = the first')


class DecentralizedPSGDConfig(Section):
    """D-PSGD, Lian et al. 2017: the graph of peers."""

    route: str = knob(
        "ring",
        "the graph; one-peer = each client sends to one other, which changes each round",
        choices=ROUTES,
    )
    degree: int = knob(
        3, "regular: number of neighbours of each client", low=1, when=When("d-psgd.route", ("regular",))
    )
    order: str = knob(
        "adapt-then-combine",
        "mix the trained models, or mix the received models and add the change by training",
        choices=("adapt-then-combine", "combine-then-adapt"),
    )


class HierFAVGConfig(Section):
    """HierFAVG, Liu et al. 2020; kappa_1 is local-steps, or local-epochs."""

    kappa2: int = knob(2, "kappa_2, edge aggregations per cloud aggregation; 1 = FedAvg", low=1)
    edges: int = knob(
        2,
        "number of edges; clients are assigned to them by name",
        low=1,
        when=When("hierfavg.pattern", ("",)),
    )
    pattern: str = knob(
        "", 'regular expression for the part of a client\'s name that is its edge, "^[a-z]+"; "" = use edges'
    )


class EnsembleConfig(Section):
    """The ensemble of local models; of="site" is Lakshminarayanan et al. 2017."""

    of: str = knob(
        "clients",
        "data of a member: its client's, or those of its whole site, with its own initial model",
        choices=("clients", "site"),
    )


class VerticalConfig(Section):
    """Parties that hold different columns of the same rows: SplitNN, Vepakomma et al. 2018, in windows."""

    cut: int = knob(16, "c, outputs of each party's bottom model, which are sent", low=1)
    hidden: int = knob(
        32, "hidden ReLU units of the top model, at the party with the labels; 0 = none", low=0
    )
    window: int = knob(
        0, "S, batches per exchange; 0 = a whole epoch; 1 with vertical.local=1 = centralised", low=0
    )
    local: int = knob(1, "Q, passes over a window's batches between two exchanges", low=1)
    standardise: bool = knob(True, "each party standardises its columns by their mean and deviation")
    parties: str = knob(
        "", 'names of the parties, "bank,shop"; "" = all clients that are online', several=True
    )
    defence: str = knob(
        "none",
        "noise on the gradients that the party with the labels sends",
        choices=("none", "max-norm", "gaussian"),
    )
    noise: float = knob(
        3.0,
        "defence=gaussian: standard deviation, in units of the batch's largest row gradient norm",
        above=0,
        when=When("vertical.defence", ("gaussian",)),
    )
    key_bits: int = knob(
        2048, "size of a key in bits, n_k; 0 = no encryption, to compare",
        choices=(0, 2048, 3072),
    )  # fmt: skip
    nopeek: float = knob(
        0.0, "alpha of NoPeek's term alpha dCor(X_k, A_k) in each party's loss; 0 = none", low=0
    )


class RegressionConfig(Section):
    """Least squares, ridge and generalised linear models over sites."""

    columns: str = knob(
        "",
        'columns with their ranges or levels, "age(0..120), sex(Female|Male)"; first level = baseline',
        several=True,
    )
    target: str = knob("", 'what is explained, with its range or two levels, "ill(0..1)"')
    family: str = knob(
        "gaussian",
        "family; link: identity, logit, log, log",
        choices=("gaussian", "binomial", "poisson", "gamma"),
    )
    trials: str = knob(
        "",
        'binomial: column of the number of trials with its range, "tests(1..400)"; "" = 1 each',
        when=When("regression.family", ("binomial",)),
    )
    link: str = knob(
        "log",
        "gamma: link",
        choices=("log", "inverse"),
        when=When("regression.family", ("gamma",)),
    )
    offset: str = knob("", 'column that is added to eta as it is, with its range, "base(-5..5)"')
    exposure: str = knob(
        "",
        'column whose logarithm is added to eta, "years(0..90)"',
        when=When("regression.family", ("poisson", "gamma")),
    )
    frequency: str = knob("", 'column of how many alike rows a row stands for, "count(1..50)"')
    weights: str = knob("", 'column of the weight by which a row\'s variance is divided, "size(0..9)"')
    errors: str = knob(
        "robust",
        "robust errors: robust = each row by itself; site = clustered by site, with more sites than columns",
        choices=("robust", "site"),
    )
    penalty: float = knob(0.0, "lambda of ridge, in the columns' own units; not of the intercept", low=0)


class StatisticsConfig(Section):
    """Descriptive statistics over sites."""

    columns: str = knob(
        "", 'columns with their ranges or levels, "age(0..120), sex(Female|Male)"', several=True
    )
    quantiles: str = knob(
        "0, 0.25, 0.5, 0.75, 1", 'which quantiles of numbers; 0 = least, 1 = largest; "" = none', several=True
    )
    bins: int = knob(16, "most bars of a histogram, a power of two; 0 = none", low=0, high=1024)
    cross: str = knob("", 'tables of two categories each, "sex*job, sex*ward"', several=True)
    correlation: bool = knob(False, "correlations of the numbers, over rows that lack none of them")
    by_site: bool = knob(False, "counts, means and levels of each site besides the pooled ones")
    site_quantiles: bool = knob(
        False,
        "quantiles and histograms of each site, too, as far as its owner lets its range be cut",
        when=When("statistics.by-site"),
    )
    pooled_least: int = knob(
        0,
        "with secagg, persons of all sites together that let a cell be shown though a site has few in it, "
        "where owners allow it; 0 = never",
        low=0,
    )


_NUMBERS = 'columns of numbers with their ranges, "age(0..120), bmi(10..80)"'
_SCALING = "what columns are divided by: none, or sd = their standard deviations"


class KMeansConfig(Section):
    """Clusters of rows over sites."""

    columns: str = knob("", _NUMBERS, several=True)
    clusters: int = knob(3, "number of clusters", low=1, high=256, when=When("k-means.start", ("",)))
    start: str = knob("", 'first centres in the columns\' order, "54,130; 61,150"; "" = spread by seed')
    scaling: str = knob("none", _SCALING, choices=("none", "sd"))


class PCAConfig(Section):
    """Principal components over sites."""

    columns: str = knob("", _NUMBERS, several=True)
    components: int = knob(0, "how many components; 0 = as many as columns", low=0)
    scaling: str = knob("none", _SCALING, choices=("none", "sd"))


class SurvivalConfig(Section):
    """Times to an event over sites: survival curves and Cox's regression."""

    time: str = knob("", 'column of the time with its range, "week(0..52)"')
    step: float = knob(1.0, "grid of the times, from the range's start; times are rounded up to it", above=0)
    until: float = knob(
        0.0, "end of follow-up: a later time counts as this one without the event; 0 = the range's end", low=0
    )
    event: str = knob("", 'whether the event happened: "arrest(0..1)", or two levels, "status(alive|dead)"')
    groups: str = knob(
        "", 'curves to draw and compare, by levels or whole numbers: "sex(Female|Male)"', several=True
    )
    columns: str = knob(
        "",
        'what the hazard depends on, "age(0..120), sex(Female|Male)"; first level = baseline',
        several=True,
    )
    strata: str = knob(
        "", 'strata, each with a baseline hazard of its own: "stage(1..4)"; "" = none', several=True
    )
    ties: str = knob("efron", "how events at one time count", choices=("efron", "breslow"))
    concordance: int = knob(0, "Harrell's c from so many bins of the risk score; 0 = none", low=0, high=4096)


class XGBConfig(Section):
    """Boosted trees that clients grow with XGBoost; the names are XGBoost's."""

    columns: str = knob(
        "", 'columns with their ranges or levels, "age(0..120), sex(Female|Male)"', several=True
    )
    target: str = knob("", 'what is predicted, with its range or levels, "ill(0..1)", "stage(1|2|3)"')
    objective: str = knob(
        "auto",
        "loss: auto = logistic for two levels, softmax for more, squared-error for a range",
        choices=("auto", "squared-error", "logistic", "softmax"),
    )
    eta: float = knob(
        0.3, "learning rate; in xgb-bagging a round adds the trees of all clients", above=0, high=1
    )
    max_depth: int = knob(6, "largest depth of a tree", low=1, high=12)
    min_child_weight: float = knob(1.0, "least sum of second derivatives in a leaf", low=0)
    reg_lambda: float = knob(1.0, "L2 penalty of leaves, XGBoost's lambda", low=0)
    reg_alpha: float = knob(0.0, "L1 penalty of leaves, XGBoost's alpha", low=0)
    gamma: float = knob(0.0, "least gain of a split", low=0)
    subsample: float = knob(1.0, "share of a client's rows for each tree", above=0, high=1)
    colsample_bytree: float = knob(1.0, "share of the columns for each tree", above=0, high=1)
    max_bin: int = knob(256, "most bins of a column", low=2, high=65535)
    order: str = knob("names", "order in which clients take turns", choices=("names", "seed"))


class GBDTConfig(Section):
    """Gradient-boosted trees over sites."""

    columns: str = knob(
        "", 'what trees split, with ranges or levels, "age(0..120), sex(Female|Male)"', several=True
    )
    target: str = knob("", 'what is predicted, with its range or all levels, "ill(no|yes)"')
    objective: str = knob(
        "auto",
        "auto = by the target: a number, two levels, more levels",
        choices=("auto", "squared-error", "logistic", "softmax"),
    )
    learning_rate: float = knob(0.3, "eta, by which each tree's output is multiplied", above=0, high=1)
    growth: str = knob(
        "depth-wise",
        "depth-wise = a question to all sites a level; leaf-wise = one a split",
        choices=("depth-wise", "leaf-wise"),
    )
    max_depth: int = knob(6, "most splits from the root to a leaf; 0 = any, if leaf-wise", low=0, high=32)
    max_leaves: int = knob(
        31, "most leaves of a tree", low=2, high=4096, when=When("gbdt.growth", ("leaf-wise",))
    )
    max_bins: int = knob(64, "most bins of a column", low=2, high=1024)
    cuts: str = knob(
        "grid",
        "where numbers may be cut: at quantiles, rounded up to a grid of the range, or exactly those (some "
        "row's own values); ranges = in equal steps",
        choices=("grid", "quantiles", "ranges"),
    )
    grid: int = knob(
        1024, "steps of each range to which cuts are rounded up", low=2, when=When("gbdt.cuts", ("grid",))
    )
    reg_lambda: float = knob(1.0, "lambda, L2 penalty of leaves", low=0)
    reg_alpha: float = knob(0.0, "alpha, L1 penalty of leaves", low=0)
    gamma: float = knob(0.0, "least gain of a split", low=0)
    min_child_weight: float = knob(1.0, "least sum of second derivatives of a child", low=0)
    min_child_count: int = knob(1, "fewest rows of a child and of a bin, over all sites", low=1)
    subsample: float = knob(1.0, "share of rows that a tree is grown from, drawn by seed", above=0, high=1)
    colsample: float = knob(1.0, "share of columns that a tree may split, drawn by seed", above=0, high=1)
    row_key: str = knob(
        "",
        'column of numbers by which rows are drawn, "id(0..1000000)"; "" = by client and place, so that '
        "the draw depends on who has a row",
        when=(When("gbdt.subsample", (1.0,), but=True, other=When("gbdt.held-out"))),
    )
    held_out: float = knob(
        0.0, "share of rows that no tree is grown from, to measure the loss", low=0, high=0.9
    )
    patience: int = knob(
        0,
        "early stopping: trees without a lower loss of the rows held out; the best number of trees stays; "
        "0 = never",
        low=0,
        when=When("gbdt.held-out"),
    )


@dataclass(frozen=True, kw_only=True)
class AlgorithmKeys:
    """The sections of algorithms with one global model, and of what several algorithms share."""

    adam: AdamConfig = field(default_factory=AdamConfig)
    fedprox: FedProxConfig = field(default_factory=FedProxConfig)
    scaffold: ScaffoldConfig = field(default_factory=ScaffoldConfig)
    adaptive_tau: AdaptiveTauConfig = field(default_factory=AdaptiveTauConfig)
    qffl: QFFLConfig = field(default_factory=QFFLConfig)
    afl: AFLConfig = field(default_factory=AFLConfig)
    term: TERMConfig = field(default_factory=TERMConfig)
    fednova: FedNovaConfig = field(default_factory=FedNovaConfig)
    coop: CoopConfig = field(default_factory=CoopConfig)
    fedasync: FedAsyncConfig = field(default_factory=FedAsyncConfig)
    fedbuff: FedBuffConfig = field(default_factory=FedBuffConfig)
    feddc: FedDCConfig = field(default_factory=FedDCConfig)
    feddyn: FedDynConfig = field(default_factory=FedDynConfig)
    fedexp: FedExPConfig = field(default_factory=FedExPConfig)
    fedcm: FedCMConfig = field(default_factory=FedCMConfig)
    fedacg: FedACGConfig = field(default_factory=FedACGConfig)
    fedlc: FedLCConfig = field(default_factory=FedLCConfig)
    fedntd: FedNTDConfig = field(default_factory=FedNTDConfig)
    mime: MimeConfig = field(default_factory=MimeConfig)
    sam: SamConfig = field(default_factory=SamConfig)
    nbafl: NbAFLConfig = field(default_factory=NbAFLConfig)
    fedavgm: FedAvgMConfig = field(default_factory=FedAvgMConfig)
    fedopt: FedOptConfig = field(default_factory=FedOptConfig)
    fedatt: FedAttConfig = field(default_factory=FedAttConfig)
    robust: RobustConfig = field(default_factory=RobustConfig)
    centered_clipping: CenteredClippingConfig = field(default_factory=CenteredClippingConfig)
    dnc: DnCConfig = field(default_factory=DnCConfig)
    fltrust: FLTrustConfig = field(default_factory=FLTrustConfig)
    d_psgd: DecentralizedPSGDConfig = field(default_factory=DecentralizedPSGDConfig)
    hierfavg: HierFAVGConfig = field(default_factory=HierFAVGConfig)
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    vertical: VerticalConfig = field(default_factory=VerticalConfig)
    regression: RegressionConfig = field(default_factory=RegressionConfig)
    statistics: StatisticsConfig = field(default_factory=StatisticsConfig)
    k_means: KMeansConfig = field(default_factory=KMeansConfig)
    pca: PCAConfig = field(default_factory=PCAConfig)
    survival: SurvivalConfig = field(default_factory=SurvivalConfig)
    xgb: XGBConfig = field(default_factory=XGBConfig)
    gbdt: GBDTConfig = field(default_factory=GBDTConfig)
