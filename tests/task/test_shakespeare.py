import gzip
import json

import numpy as np
import pytest
import torch

from task.config.sections import DataConfig, SyntheticConfig
from task.datasets import base, load_dataset, shakespeare
from task.errors import DataError
from tests.task.helpers import load, write_roles


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch, request):
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))
    if "data_folder" not in request.fixturenames:
        monkeypatch.setenv("BOUQUET_DATA", str(tmp_path / "data"))


def text_of(data, rows):
    """Rebuild a text from its windows: the first byte and then every target."""
    y = data.y[rows].reshape(-1)
    return bytes([data.x[rows][0, 0]]) + bytes(y[y != base.PADDING].astype(np.uint8))


def test_windows_of_shakespeare_rebuild_the_text(tmp_path):
    lines = [f"line {i}: " + "word " * (i % 7) for i in range(41)]
    write_roles(tmp_path / "data", [("King/Lear", "Fool", lines), ("Hamlet", "Éric", ["a", "bc"])])
    data = load(dataset="shakespeare")
    assert (data.kind, data.num_classes, data.input_shape) == ("text", 256, (80,))
    assert data.owners.names == ("King_Lear-Fool",)  # the other's parts have no byte to predict
    assert "1 left out" in data.description
    train, test = data.owners.train(0), data.owners.test(0)
    assert text_of(data, train).decode() == "\n".join(lines[:32])  # test: a fifth, rounded up to 9 lines
    assert text_of(data, test).decode() == "\n".join(lines[32:])
    x, y = data.inputs(train), data.targets(train)
    assert x.dtype == y.dtype == torch.int64
    assert torch.equal(x[:, 1:][y[:, 1:] != -100], y[:, :-1][y[:, 1:] != -100])
    assert (x[y == -100] == 0).all()
    assert x.shape == (-(-(len("\n".join(lines[:32])) - 1) // 80), 80)


def test_padding_does_not_count():
    x, y = shakespeare.windows(b"abc" * 40)
    assert (x.shape, int((y != base.PADDING).sum())) == ((2, 80), 119)
    logits = torch.randn(2, 256, 80, generator=torch.Generator().manual_seed(1))
    targets = torch.from_numpy(y).long()
    loss = torch.nn.functional.cross_entropy(logits, targets)
    flat = torch.log_softmax(logits, 1).transpose(1, 2).reshape(-1, 256)[:119]
    assert float(loss) == pytest.approx(-float(flat[range(119), list(b"bca" * 39 + b"bc")].mean()), rel=1e-5)
    assert [len(shakespeare.windows(t)[0]) for t in (b"", b"a", b"ab", b"a" * 81, b"a" * 82)] == [
        0,
        0,
        1,
        1,
        2,
    ]


def test_role_names_are_unique_and_safe(tmp_path):
    text = ["some text", "more text"]
    write_roles(
        tmp_path / "data", [("A", "b/..", text), ("A", "B", text), ("A", "b", text), ("..", "", text)]
    )
    names = load(dataset="shakespeare").owners.names
    assert names == ("A-b", "A-B-2", "A-b-3", "unnamed")


def test_bad_roles_are_named_by_line(tmp_path):
    path = write_roles(tmp_path / "data", [("A", "B", ["some text", "more text"])])
    good = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(good + b'\n{"play": "A", "role": "C"}'))
    with pytest.raises(DataError, match=r"roles.jsonl.gz, line 2: .*lines"):
        load(dataset="shakespeare")
    path.write_bytes(gzip.compress(good * 50)[:-20])
    with pytest.raises(DataError, match=r"roles.jsonl.gz"):
        load(dataset="shakespeare")
    path.unlink()
    with pytest.raises(DataError, match=r"shakespeare: expected roles.jsonl.gz .* or LEAF"):
        load(dataset="shakespeare")


def write_leaf(path, users):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {u: {"x": x, "y": y} for u, (x, y) in users.items()}
    path.write_text(json.dumps({"users": list(users), "user_data": data}))


def test_leaf_counts_only_the_next_character(tmp_path):
    text = "".join(chr(65 + i % 26) for i in range(100))
    pairs = [text[i : i + 80] for i in range(20)], [text[i + 80] for i in range(20)]
    root = tmp_path / "data/shakespeare"
    write_leaf(root / "train/a.json", {"HAMLET": pairs})
    write_leaf(root / "test/a.json", {"HAMLET": (pairs[0][:3], pairs[1][:3])})
    data = load(dataset="shakespeare")
    assert (data.num_train, len(data.y), data.owners.names) == (20, 23, ("HAMLET",))
    assert bytes(data.x[4]).decode() == text[4:84]
    assert (data.y[:, :-1] == base.PADDING).all()
    assert "".join(map(chr, data.y[:20, -1])) == text[80:]
    (root / "test/a.json").unlink()
    alone = load(dataset="shakespeare")
    assert (alone.num_train, len(alone.y)) == (16, 20)  # the last fifth
    write_leaf(root / "train/a.json", {"HAMLET": (["short"], ["x"])})
    with pytest.raises(DataError, match=r"a.json, user HAMLET: expected LEAF"):
        load(dataset="shakespeare")


@pytest.mark.data
def test_real_shakespeare(data_folder):
    if not (data_folder / "shakespeare").exists():
        pytest.skip("no shakespeare in $BOUQUET_DATA")
    data = load_dataset(DataConfig(dataset="shakespeare"), SyntheticConfig(), 1)
    assert len(data.owners.names) > 1000
    assert len({name.lower() for name in data.owners.names}) == len(data.owners.names)
    assert 3_000_000 < (data.y[: data.num_train] != base.PADDING).sum() < 4_000_000
