"""Environment variables of Flower's processes."""

from pathlib import Path


def environment(home: Path) -> dict[str, str]:
    """Return the variables of a process that keeps its files in a folder and asks no other machine."""
    return {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
