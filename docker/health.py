"""Health check of a container: ``health.py KIT`` ends with 0 if the machine of this kit does its work.

Only the standard library, since it runs every few seconds. A link writes down how it is; of a node it looks
when the SuperLink last answered it.
"""

import json
import os
import sys
import time
import tomllib

OLD_S = 15  # a link writes every 2 s
SILENT_S = 30  # a node's heartbeat comes every 10 s


def unwell(kit: str) -> str:
    """Return why the machine does not do its work, "" if it does."""
    with open(os.path.join(kit, "kit.toml"), "rb") as file:
        table = tomllib.load(file)
    if table["kind"] == "node":
        silent_s = time.time() - os.stat(os.path.join(kit, "state", "alive")).st_mtime
        return f"no answer from {table['link']} for {silent_s:.0f} s" if silent_s > SILENT_S else ""
    with open(os.path.join(kit, "state", "status.json"), encoding="utf-8") as file:
        status = json.load(file)
    age_s = time.time() - status["written"]
    if age_s > OLD_S:
        return f"the link stands still: its status is {age_s:.0f} s old"
    return "; ".join(status["warnings"]) if status["state"] == "red" else ""


if __name__ == "__main__":
    try:
        why = unwell(sys.argv[1])
    except (OSError, KeyError, ValueError) as err:
        why = f"{type(err).__name__}: {err}"
    if why:
        sys.exit(why)
