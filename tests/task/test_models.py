import re

import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

from task.config.knobs import Config
from task.config.sections import DataConfig
from task.errors import ConfigError
from task.models import MODELS, build_model
from task.models.layers import BatchNorm1d, LocalResponseNorm, Twin
from task.resolve.run_model import model_of

MNIST = (1, 28, 28)
CIFAR = (3, 32, 32)


def size(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("2nn", MNIST, 10, 199_210),  # McMahan et al.
        ("cnn", MNIST, 10, 1_663_370),  # McMahan et al.
        ("lenet", MNIST, 10, 44_426),  # NIID-Bench
        ("pfl-cnn", MNIST, 10, 582_026),  # PFLlib
        ("tf-cnn", (3, 24, 24), 10, 1_068_298),  # McMahan et al.: about 10^6
        ("char-lstm", (80,), 256, 866_560),  # the paper's 866,578 but for its biases
        ("logistic", (60,), 10, 610),
        ("mlp", (1, 8, 8), 10, 64 * 64 + 64 + 640 + 10),
        ("cnn", (3, 32, 32), 10, 2432 + 51_264 + 64 * 64 * 512 + 512 + 5130),
        # convolutions, hidden layers, projection head, last layer
        ("moon-cnn", CIFAR, 10, 456 + 2416 + 48_120 + 10_164 + 7140 + 21_760 + 2570),
        ("moon-cnn", MNIST, 10, 156 + 2416 + 30_840 + 10_164 + 7140 + 21_760 + 2570),
        # vectors, the hidden and the last layer
        ("fasttext", (200,), 4, 32_000 * 32 + 1056 + 132),
        # convolutions in thousands of 9 weights by stage, 1x1 shortcuts, scales and shifts, last layer
        (
            "resnet18",
            CIFAR,
            10,
            9 * (3 * 64 + 4 * 64**2 + (64 + 3 * 128) * 128 + (128 + 3 * 256) * 256 + (256 + 3 * 512) * 512)
            + 64 * 128
            + 128 * 256
            + 256 * 512
            + 2 * (5 * 64 + 5 * (128 + 256 + 512))
            + 5130,
        ),
        ("cnn-bn", MNIST, 10, 1_663_370 + 2 * (32 + 64 + 512)),  # cnn, and a scale and a shift per channel
    ],
)
def test_parameter_counts_and_output_shapes(name, shape, classes, parameters):
    model = build_model(name, shape, classes, seed=1)
    assert size(model) == parameters
    if name == "char-lstm":
        x = torch.randint(0, 256, (2, *shape))
        assert model(x).shape == (2, classes, 80)
    else:
        dtype = torch.int64 if name == "fasttext" else torch.float32
        assert model(torch.zeros(2, *shape, dtype=dtype)).shape == (2, classes)


@pytest.mark.parametrize("name", [n for n in MODELS if n not in ("autoencoder", "logistic", "mlp")])
def test_descriptions_count_right(name):
    found = re.search(r"([\d,]{6,})(?: parameters)?(?: on (\S+))?\)$", MODELS[name].description)
    said, where = found.groups()
    shape, classes = {
        "MNIST": (MNIST, 10),
        "CIFAR-10": (CIFAR, 10),
        "3x24x24": ((3, 24, 24), 10),
        "AG-News": ((200,), 4),
        None: ((80,), 256),
    }[where]
    shape = (784 + classes,) if MODELS[name].conditional else shape
    assert said == f"{size(build_model(name, shape, classes, seed=1)):,}"


def test_registry_is_sorted_and_described():
    assert list(MODELS) == sorted(MODELS)
    assert all(spec.description and spec.inputs for spec in MODELS.values())


def test_normalisation_of_responses_is_pytorchs_own():
    """A wrong width, or sums over pixels instead of channels, would show."""
    x = torch.randn(3, 12, 4, 5, generator=torch.Generator().manual_seed(1)) * 50
    ours, theirs = (made(9, alpha=0.001, beta=0.75)(x) for made in (LocalResponseNorm, nn.LocalResponseNorm))
    assert (theirs < 0.9 * x.abs()).any()
    torch.testing.assert_close(ours, theirs)


def test_the_tutorials_cnn_by_hand():
    """Pooling 3x3 by 2 over TensorFlow's padding; first pool and normalise, then normalise and pool."""
    model = build_model("tf-cnn", (1, 6, 6), 10, seed=3)
    c1, b1, c2, b2, *dense = model.parameters()
    x = torch.linspace(0, 1, 36).reshape(1, 1, 6, 6)

    def pool(h, *padding):
        return nnf.max_pool2d(nnf.pad(h, padding, value=-torch.inf), 3, 2)

    def norm(h):
        return nnf.local_response_norm(h, 9, alpha=0.001, beta=0.75, k=1.0)

    h = norm(pool(nnf.relu(nnf.conv2d(x, c1, b1, padding=2)), 0, 1, 0, 1))  # 6 is even, 3 is odd
    h = pool(norm(nnf.relu(nnf.conv2d(h, c2, b2, padding=2))), 1, 1, 1, 1)
    assert h.shape == (1, 64, 2, 2)
    h = h.flatten(1)
    for w, b in zip(dense[:-2:2], dense[1:-2:2], strict=True):
        h = nnf.relu(nnf.linear(h, w, b))
    torch.testing.assert_close(nnf.linear(h, *dense[-2:]), model(x))


def test_cnn_layers_keep_the_papers_order_of_operations():
    """Recompute the CNN by hand from its own parameters."""
    model = build_model("cnn", (1, 8, 8), 10, seed=3)
    c1, b1, c2, b2, w3, b3, w4, b4 = model.parameters()
    x = torch.linspace(0, 1, 64).reshape(1, 1, 8, 8)
    h = nnf.max_pool2d(nnf.relu(nnf.conv2d(x, c1, b1, padding=2)), 2)
    h = nnf.max_pool2d(nnf.relu(nnf.conv2d(h, c2, b2, padding=2)), 2)
    expected = nnf.relu(h.flatten(1) @ w3.T + b3) @ w4.T + b4
    torch.testing.assert_close(model(x), expected)


def test_moon_cnn_is_encoder_projection_head_and_output():
    """The last layer reads the projection head's output, which no ReLU follows."""
    model = build_model("moon-cnn", CIFAR, 10, seed=3)
    c1, b1, c2, b2, *linear = model.parameters()
    x = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, *CIFAR)
    h = nnf.max_pool2d(nnf.relu(nnf.conv2d(x, c1, b1)), 2)
    h = nnf.max_pool2d(nnf.relu(nnf.conv2d(h, c2, b2)), 2).flatten(1)
    for W, b in zip(linear[:6:2], linear[1:6:2], strict=True):  # 120, 84 and the head's first layer
        h = nnf.relu(h @ W.T + b)
    z = h @ linear[6].T + linear[7]
    assert z.shape == (2, 256)
    assert z.min() < 0
    torch.testing.assert_close(model(x), z @ linear[8].T + linear[9])


def test_cnn_bn_normalises_before_each_relu():
    model = build_model("cnn-bn", (1, 8, 8), 10, seed=3)
    c1, b1, _, _, c2, b2, _, _, w3, b3, _, _, w4, b4 = model.parameters()
    x = torch.linspace(-1, 1, 5 * 64).reshape(5, 1, 8, 8).sin()

    def normal(h):  # fresh layers scale by 1 and shift by 0
        axes = [i for i in range(h.dim()) if i != 1]
        return (h - h.mean(axes, keepdim=True)) / (h.var(axes, unbiased=False, keepdim=True) + 1e-5).sqrt()

    h = nnf.max_pool2d(nnf.relu(normal(nnf.conv2d(x, c1, b1, padding=2))), 2)
    h = nnf.max_pool2d(nnf.relu(normal(nnf.conv2d(h, c2, b2, padding=2))), 2)
    expected = nnf.relu(normal(h.flatten(1) @ w3.T + b3)) @ w4.T + b4
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    assert int(model[1].num_batches_tracked) == 1


def test_batch_normalisation_takes_one_example():
    ours, torchs = BatchNorm1d(3), nn.BatchNorm1d(3)
    x = torch.arange(12.0).reshape(4, 3)
    torch.testing.assert_close(ours(x), torchs(x))
    before = {n: t.clone() for n, t in ours.state_dict().items()}
    one = ours(x[:1])
    assert all(torch.equal(before[n], t) for n, t in ours.state_dict().items())
    torch.testing.assert_close(one, torchs.eval()(x[:1]))
    with pytest.raises(ValueError, match="more than 1 value"):
        torchs.train()(x[:1])
    assert build_model("cnn-bn", (1, 4, 4), 3, seed=1)(torch.zeros(1, 1, 4, 4)).shape == (1, 3)


@pytest.mark.parametrize("name", ["2nn", "cnn-bn", "moon-cnn"])
def test_a_twin_is_two_extractors_and_a_head(name):
    plain = build_model(name, MNIST, 10, seed=1).eval()
    twin = build_model(name, MNIST, 10, seed=1, twin=True).eval()
    assert isinstance(twin, Twin)
    body, last = plain[:-1], plain[-1]
    assert size(twin) == 2 * size(body) + 2 * last.in_features * 10 + 10
    x = torch.linspace(0, 1, 3 * 784).reshape(3, *MNIST)
    torch.testing.assert_close(twin.shared(x), body(x))  # the same seed gives the same extractor
    weight, bias = twin.head.parameters()
    torch.testing.assert_close(
        twin(x),
        body(x) @ weight[:, : last.in_features].T + twin.local(x) @ weight[:, last.in_features :].T + bias,
    )
    names = [n.removeprefix("shared.") for n in twin.state_dict() if n.startswith("shared.")]
    assert names == list(body.state_dict())
    drawn = [n for n in names if body.state_dict()[n].is_floating_point() and body.state_dict()[n].std() > 0]
    assert drawn
    state = twin.state_dict()
    assert not any(torch.equal(state[f"shared.{n}"], state[f"local.{n}"]) for n in drawn)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "says"),
    [
        ("char-lstm", (80,), 256, "FENDA needs a chain of layers .* got CharLSTM"),
        ("logistic", (60,), 10, 'FENDA needs layers to share .* "logistic"'),
    ],
)
def test_what_has_no_twin_is_refused(name, shape, classes, says):
    with pytest.raises(ConfigError, match=says):
        build_model(name, shape, classes, seed=1, twin=True)


def test_logistic_is_one_linear_map():
    model = build_model("logistic", (2, 3), 4, seed=1)
    weight, bias = model.parameters()
    x = torch.arange(6.0).reshape(1, 2, 3)
    torch.testing.assert_close(model(x), x.flatten(1) @ weight.T + bias)


def test_char_lstm_is_causal_and_feeds_cross_entropy():
    model = build_model("char-lstm", (80,), 256, seed=1)
    x = torch.arange(12).reshape(2, 6)
    changed = x.clone()
    changed[:, 4] = 200
    before, after = model(x), model(changed)
    torch.testing.assert_close(before[:, :, :4], after[:, :, :4])
    assert not torch.allclose(before[:, :, 4], after[:, :, 4])
    targets = torch.full((2, 6), -100)
    targets[0, 2] = 7
    by_hand = -torch.log_softmax(before[0, :, 2], 0)[7]
    torch.testing.assert_close(nnf.cross_entropy(before, targets), by_hand)


@pytest.mark.parametrize(
    ("name", "twin"), [("2nn", False), ("cnn", False), ("char-lstm", False), ("2nn", True)]
)
def test_initialisation_depends_on_the_seed_alone(name, twin):
    shape, classes = ((80,), 256) if name == "char-lstm" else (MNIST, 10)
    torch.manual_seed(5)
    first = build_model(name, shape, classes, seed=1, twin=twin).state_dict()
    torch.manual_seed(6)
    again = build_model(name, shape, classes, seed=1, twin=twin).state_dict()
    other = build_model(name, shape, classes, seed=2, twin=twin).state_dict()
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not any(torch.equal(first[k], other[k]) for k in first)


def test_global_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build_model("mlp", (64,), 10, seed=1)
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(5)
    with pytest.raises(ConfigError):
        build_model("cnn", (64,), 10, seed=1)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "kind", "says"),
    [
        ("cnn", (60,), 10, "", r'"cnn" expects images .* shape \(60,\)'),
        ("cnn", (1, 3, 3), 10, "", "at least 4x4"),
        ("pfl-cnn", (1, 8, 8), 10, "", r"at least 16x16.* shape \(1, 8, 8\)"),
        ("char-lstm", MNIST, 10, "", r'"char-lstm" expects text windows .* shape \(1, 28, 28\)'),
        ("char-lstm", (60,), 10, "", "10 classes"),
        ("mlp", (80,), 256, "text", "got text data"),
        ("char-lstm", (80,), 256, "features", "got features data"),
        ("cn", MNIST, 10, "", 'Did you mean "cnn"'),
    ],
)
def test_misfits_are_refused(name, shape, classes, kind, says):
    with pytest.raises(ConfigError, match=says):
        build_model(name, shape, classes, seed=1, kind=kind)


def test_smallest_images_that_are_accepted_work():
    for name, side in (("cnn", 4), ("lenet", 16), ("moon-cnn", 16), ("pfl-cnn", 16)):
        assert build_model(name, (1, side, side), 3, seed=1)(torch.zeros(1, 1, side, side)).shape == (1, 3)


@pytest.mark.parametrize("name", ["2nn", "logistic", "mlp"])
def test_a_model_of_numbers_is_refused_for_text(name):
    config = Config(model=name, data=DataConfig(dataset="shakespeare"))
    with pytest.raises(ConfigError, match=r'"model": .* expects images or feature vectors; got text data'):
        model_of(config, (80,), 256)
    model_of(Config(model="char-lstm", data=config.data), (80,), 256)
