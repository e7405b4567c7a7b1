"""Where a process computes: on its GPU, if it has one and the config allows it, or on its CPU."""

from pathlib import Path

import torch

from task.config.sections import TrainConfig
from task.errors import ConfigError


def training_device(config: TrainConfig) -> torch.device:
    """Return the device to train on.

    Raises:
        ConfigError: ``cuda`` is asked for and there is none.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError('run-config key "device": expected a CUDA GPU on this node; got none. Use "auto".')
    return evaluation_device(config)


def evaluation_device(config: TrainConfig) -> torch.device:
    """Return the device on which the server evaluates; it need not have a GPU where the nodes do.

    On a GPU this process's convolutions then keep all bits of float32 and add in a fixed order.
    """
    if config.portable or config.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    # By default PyTorch's convolutions round float32 inputs to 10 bits (TF32), and may add in any order.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    return torch.device("cuda")


def gpu_model() -> str:
    """Return the model of the GPUs that a process here may use, such as ``NVIDIA H100 80GB HBM3``, or "".

    It does not start CUDA, as a process that did so cannot be forked any more.
    """
    if not torch.cuda.device_count():
        return ""
    texts = [path.read_text("utf-8") for path in Path("/proc/driver/nvidia/gpus").glob("*/information")]
    lines = [line.partition(":") for text in texts for line in text.splitlines()]
    return " and ".join(sorted({value.strip() for name, _, value in lines if name == "Model"})) or "a GPU"
