"""What Flower's command line does with an app: its bundle, and the options that change its run config."""

from pathlib import Path

from flwr.app import UserConfig


def parse_options(options: list[str] | None) -> UserConfig:
    """Return the run-config keys of `-c` options, as `flwr run` reads them."""
    from flwr.common.config import parse_config_args

    return parse_config_args(options)


def build_bundle(folder: Path) -> bytes:
    """Return an app's folder as the bundle that `flwr build` makes."""
    from flwr.cli.build import build_fab_from_disk

    return build_fab_from_disk(folder)
