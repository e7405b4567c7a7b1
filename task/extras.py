"""Packages that an extra of pyproject.toml brings, such as ``pip install 'bouquet[he]'``."""

from importlib import import_module
from typing import Any

from task.errors import ConfigError


def from_extra(extra: str, module: str, where: str) -> Any:
    """Return a module of an extra's package, imported.

    Args:
        extra: The extra of pyproject.toml that has the package.
        module: The whole name of the module.
        where: The key or option that needs it, as the error names it.

    Raises:
        ConfigError: It cannot be imported; the error names the extra.
    """
    try:
        return import_module(module)
    except ImportError as err:
        package = module.partition(".")[0].replace("_", "-")
        raise ConfigError(
            f"{where}: expected the package {package}; got {err}. Install it: pip install 'bouquet[{extra}]'"
        ) from None
