"""What Flower's command line does with an app: its bundle."""

from pathlib import Path


def build_bundle(folder: Path) -> bytes:
    """Return an app's folder as the bundle that `flwr build` makes."""
    from flwr.cli.build import build_fab_from_disk

    return build_fab_from_disk(folder)
