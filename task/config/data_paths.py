"""The keys for a path that a user gives in place of a data set's name."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from task.config.sections import OWN_FORMS
from task.references import is_hub

_WITH_FORM = re.compile(r"\s*([\w-]+?)\s*(?:[:=]|\s)\s*(.*?)\s*", re.DOTALL)
_FILE = re.compile(r".*\.(csv|tsv|txt|npz|zip|gz|arrow|parquet|jsonl?|xlsx?)", re.IGNORECASE)
_FORMS = {".csv": "csv", ".npz": "npz", ".zip": "imagefolder"}  # by the end of a file's name


def path_in(name: str) -> tuple[tuple[str, ...], str]:
    """Return the forms that a path may have, and the path: one alone, or behind its form; () for a name."""
    found = _WITH_FORM.fullmatch(name)
    form = re.sub("[_-]", "", found[1].lower()) if found else ""
    if found and form in OWN_FORMS:
        return (form,), found[2] or "PATH"
    if not is_hub(name) and (re.search(r"[/\\]", name) or _FILE.fullmatch(name)):
        return _forms(Path(name.strip()).expanduser()), name.strip()
    return (), name


def keys_of_path(forms: Sequence[str], path: str) -> str:
    """Return run-config keys for a path, as a user types them; of several forms one is to be chosen."""
    data = " or ".join(f'dataset="{form}"' for form in forms)
    return f"{data} data-path={json.dumps(path, ensure_ascii=False)}"


def _forms(path: Path) -> tuple[str, ...]:
    """Return the forms that a file or folder may have."""
    if path.is_dir() and any(path.glob("*.csv")):
        return ("csv",)
    form = _FORMS.get(path.suffix.lower())
    return (form,) if form else OWN_FORMS
