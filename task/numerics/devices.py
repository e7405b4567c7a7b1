"""Choose the device of a process: its GPU, if it has one and the config allows it, or its CPU."""

import os
from pathlib import Path

import torch

from task.errors import ConfigError


def training_device(wanted: str, *, portable: bool = False) -> torch.device:
    """Return the device to train on; `wanted` is auto, cpu or cuda.

    Raises:
        ConfigError: ``cuda`` is asked for and there is none.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError('run-config key "device": expected a CUDA GPU on this node; got none. Use "auto".')
    return evaluation_device(wanted, portable=portable)


def evaluation_device(wanted: str, *, portable: bool = False) -> torch.device:
    """Return the device on which the server evaluates; it need not have a GPU where the nodes do.

    On a GPU this process's convolutions then keep all bits of float32 and add in a fixed order.
    """
    if portable or wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    # By default PyTorch's convolutions round float32 inputs to 10 bits (TF32), and may add in any order.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    return torch.device("cuda")


def gpus_here() -> list[str]:
    """Return the GPUs that this process may use, each as ``CUDA_VISIBLE_DEVICES`` names it."""
    if named := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return [name for name in named.split(",") if name != "-1"]
    return [str(i) for i in range(torch.cuda.device_count())]


def gpu_model() -> str:
    """Return the model of the GPUs that a process here may use, such as ``NVIDIA H100 80GB HBM3``, or "".

    It does not start CUDA, as such a process can no longer be forked.
    """
    if not torch.cuda.device_count():
        return ""
    texts = [path.read_text("utf-8") for path in Path("/proc/driver/nvidia/gpus").glob("*/information")]
    lines = [line.partition(":") for text in texts for line in text.splitlines()]
    return " and ".join(sorted({value.strip() for name, _, value in lines if name == "Model"})) or "a GPU"
