"""The Chromium of this machine: found, or installed where that is possible; no test is left out silently."""

from __future__ import annotations

import os
import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
ADVICE = "install it (Debian: apt-get install chromium), or set BOUQUET_CHROMIUM to its executable"


def chromium() -> str:
    """Return the executable.

    Raises:
        RuntimeError: There is none and it cannot be installed here; says what to do.
    """
    if path := _found():
        return path
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise RuntimeError(f"no Chromium on this machine: {ADVICE}")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in ("apt-get update -qq", "apt-get install -y -qq --no-install-recommends chromium"):
        done = subprocess.run(
            command.split(), env=env, capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"no Chromium on this machine, and `{command}` failed: {ADVICE}\n{done.stderr}"
            )
    if path := _found():
        return path
    raise RuntimeError(f"apt-get installed no Chromium: {ADVICE}")


def _found() -> str | None:
    own = os.environ.get("BOUQUET_CHROMIUM")
    return own or next((path for name in NAMES if (path := shutil.which(name))), None)


def arguments() -> list[str]:
    """Return its arguments: root has no sandbox, and a container little shared memory."""
    return ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
