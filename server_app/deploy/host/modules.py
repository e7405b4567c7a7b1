"""Starts our own modules as programs, from whatever folder the user is in."""

import sys


def module_command(name: str, *arguments: str) -> list[str]:
    """Return the command that runs an installed module.

    Python would look for it, and for all that it imports, in the working directory first: ``-P`` keeps a
    ``task/`` or a ``torch.py`` there from taking the place of the installed one.
    """
    return [sys.executable, "-P", "-m", name, *arguments]
