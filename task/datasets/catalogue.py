"""The data sets a run can name, by name."""

from task.config.data_paths import keys_of_path, path_in
from task.datasets import (
    domains,
    generated,
    hub,
    idx,
    images,
    leaf,
    npz,
    shakespeare,
    tables,
    user_loader,
    words,
)
from task.datasets.base import DatasetSpec, Source
from task.errors import ConfigError, choose_from
from task.references import is_hub, is_reference

_CIFAR = "Krizhevsky 2009, University of Toronto; free use, downloaded by torchvision"

DATASETS: dict[str, DatasetSpec] = {
    "ag-news": DatasetSpec(
        "127,600 texts of news, titles and descriptions, of 4 classes",
        "Zhang, Zhao and LeCun 2015; train.csv and test.csv in <data-dir>/ag-news, for non-commercial use",
        "fasttext", words.locate_news, words.decode_news, text=True,
    ),
    "arrow": DatasetSpec(
        "your own Hugging Face data set: a folder of save_to_disk or flwr-datasets create",
        "data-path", "mlp", hub.locate_folder, hub.decode_folder, own=True,
    ),
    "breast-cancer": DatasetSpec(
        "569 tumours with 30 measures each: 10 means, 10 errors, 10 worsts; comes with scikit-learn",
        "Wolberg, Mangasarian, Street and Street 1995, UCI, CC BY 4.0; bundled with scikit-learn",
        "mlp", lambda request: Source(), generated.decode_breast_cancer,
    ),
    "cifar10": DatasetSpec(
        "60,000 colour photographs 32x32 of 10 classes", _CIFAR,
        "cnn", images.locate_cifar, images.decode_cifar,
    ),
    "cifar100": DatasetSpec(
        "60,000 colour photographs 32x32 of 100 classes", _CIFAR,
        "cnn", images.locate_cifar, images.decode_cifar,
    ),
    "csv": DatasetSpec(
        "your own table: numbers, categories and a label, optionally client and split; or a folder of them",
        "data-path", "mlp", tables.locate_csv, tables.decode_csv, own=True,
    ),
    "digit-5": DatasetSpec(
        "digits 32x32 in colour of five domains, which are the owners: MNIST, MNIST-M, SVHN, synthetic, USPS",
        "Peng et al. 2019 (M3SDA); the MATLAB files in <data-dir>/digit-5",
        "cnn", domains.locate, domains.decode,
    ),
    "digits": DatasetSpec(
        "1,797 handwritten digits 8x8, comes with scikit-learn",
        "UCI optical recognition of handwritten digits, CC BY 4.0; bundled with scikit-learn",
        "mlp", lambda request: Source(), generated.decode_digits,
    ),
    "emnist": DatasetSpec(
        "131,600 handwritten digits and letters 28x28, the balanced split of 47 classes",
        "Cohen et al. 2017, NIST; public domain, downloaded by torchvision",
        "cnn", idx.locate, idx.decode,
    ),
    "fashion-mnist": DatasetSpec(
        "70,000 pictures of clothes 28x28 of 10 classes",
        "Xiao et al. 2017, Zalando Research; MIT, downloaded by torchvision",
        "cnn", idx.locate, idx.decode,
    ),
    "fcube": DatasetSpec(
        "5,000 points of a cube, 2 classes; each of four parties has two opposite octants",
        "Li et al. 2022 (NIID-Bench); generated from the seed",
        "logistic", generated.locate_fcube, generated.decode_fcube, drawn=True,
    ),
    "femnist": DatasetSpec(
        "pictures 28x28 of 62 characters; the writers are the owners",
        "Caldas et al. 2018 (LEAF), NIST; LEAF's JSON in <data-dir>/femnist",
        "cnn", leaf.locate, leaf.decode_femnist,
    ),
    "imagefolder": DatasetSpec(
        "your own pictures: train/<class>/*, test/<class>/* or <class>/*, a folder or a zip file",
        "data-path", "cnn", images.locate_folder, images.decode_folder, own=True,
    ),
    "mnist": DatasetSpec(
        "70,000 handwritten digits 28x28",
        "LeCun, Cortes and Burges; CC BY-SA 3.0, downloaded by torchvision",
        "2nn", idx.locate, idx.decode,
    ),
    "npz": DatasetSpec(
        "your own NumPy arrays: x, y, optionally x_test, y_test, client",
        "data-path", "mlp", npz.locate_npz, npz.decode_npz, own=True,
    ),
    "sent140": DatasetSpec(
        "tweets, negative or positive; the authors are the owners",
        "Go et al. 2009, Caldas et al. 2018 (LEAF); LEAF's JSON in <data-dir>/sent140",
        "fasttext", leaf.locate, leaf.decode_sent140, text=True,
    ),
    "shakespeare": DatasetSpec(
        "next-byte prediction; the speaking roles of the plays are the owners",
        "roles.jsonl.gz or LEAF's JSON in <data-dir>/shakespeare; public domain",
        "char-lstm", shakespeare.locate, shakespeare.decode, targets=shakespeare.WINDOW, text=True,
    ),
    "synthetic": DatasetSpec(
        "Synthetic(alpha, beta): 60 features, 10 classes, one model and input law per device",
        "Li et al. 2020 (FedProx); generated from the seed",
        "logistic", generated.locate_synthetic, generated.decode_synthetic, drawn=True,
    ),
    "tiny-imagenet": DatasetSpec(
        "110,000 colour photographs 64x64 of 200 classes; those of the validation set are the test set",
        "Stanford CS231n, of ImageNet; its archive unpacked in <data-dir>, for non-commercial research",
        "resnet18", images.locate_tiny, images.decode_tiny,
    ),
}  # fmt: skip

_BROUGHT = DatasetSpec("your own code", "package.module:name", "", user_loader.locate, user_loader.decode)
_HUB = DatasetSpec("of Hugging Face", "hf:OWNER/NAME or hf:FOLDER", "", hub.locate, hub.decode)


def check_no_path(name: str) -> None:
    """Refuse a path in place of a data set's name, or behind the name of its form.

    Raises:
        ConfigError: With the keys to type.
    """
    forms, path = path_in(name)
    if forms:
        raise ConfigError(
            'run-config key "dataset": expected the path in a key of its own, '
            f'{keys_of_path(forms, path)}; got "{name}"'
        )


def spec_of(name: str) -> DatasetSpec:
    """Return the entry of a data set; one of the user's own code has no limits of ours.

    Raises:
        ConfigError: There is no such data set.
    """
    check_no_path(name)
    if is_reference(name):
        return _HUB if is_hub(name) else _BROUGHT
    if name not in DATASETS:
        raise ConfigError(choose_from('run-config key "dataset"', name, DATASETS))
    return DATASETS[name]
