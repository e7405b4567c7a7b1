"""The site: `make docs` builds it with Sphinx from the pages that the repository shows as they are."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from myst_parser.parsers.sphinx_ import MystParser
from pygments.lexers.special import TextLexer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

project = "Bouquet"
author = copyright = "The Bouquet authors"
(release,) = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)

# The source folder is the repository, so that links to pages beside the code lead to pages of the site.
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "docs/*/*.md",
    "docs/*/*.ipynb",
    "docs/apps/*/README.md",
    "task/recipes/README.md",
    "docker/*.md",
    "CHANGELOG.md",
]
exclude_patterns = [".*", "site", "runs", "dist", "build", "tests"]
source_suffix = {".md": "markdown", ".ipynb": "notebook"}

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
highlight_language = "none"  # blocks without a language are outputs
myst_enable_extensions = ["dollarmath"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"

html_theme = "furo"
html_title = f"Bouquet {release}"
html_show_sourcelink = False
html_copy_source = False


class NotebookParser(MystParser):
    """Reads a notebook without outputs as a page: its text, and its cells as blocks of Python."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: Any) -> None:
        """Put the notebook's cells into the document."""
        parts = []
        for cell in json.loads(inputstring)["cells"]:
            text = "".join(cell["source"])
            parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else text)
        super().parse("\n\n".join(parts), document)


def without_folders(app: Any, docname: str, source: list[str]) -> None:
    """Keep the words of links to folders, which a site cannot show."""
    here = Path(app.srcdir, docname).parent
    source[0] = re.sub(
        r"\[([^]\n]*)\]\(((?!http)[^)#\s]+)\)",
        lambda m: m[1] if (here / m[2]).is_dir() else m[0],
        source[0],
    )


def first_page(app: Any, failure: Exception | None) -> None:
    """Lead from the site's folder to its first page."""
    if app.builder.name == "html" and not failure:
        to = f"{root_doc}.html"
        text = f'<!doctype html><meta http-equiv="refresh" content="0; url={to}"><a href="{to}">Bouquet</a>\n'
        Path(app.outdir, "index.html").write_text(text, "utf-8")


def setup(app: Any) -> None:
    """Add the parser and the hooks to Sphinx."""
    app.add_lexer("csv", TextLexer)
    app.add_source_parser(NotebookParser)
    app.connect("source-read", without_folders)
    app.connect("build-finished", first_page)
