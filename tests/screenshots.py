"""The pictures of README: the site's first page and a report. `make docs` first, then `make screenshots`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.support.chromium import arguments, chromium

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs/images"
LARGEST = 200_000  # bytes of a picture


def picture(page: str, out: Path, height: int) -> None:
    """Draw a page of the disk, 1200 pixels wide, with a palette of 128 colours.

    Raises:
        RuntimeError: The picture is too large.
    """
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as program:
        browser = program.chromium.launch(executable_path=chromium(), args=arguments())
        tab = browser.new_page(viewport={"width": 1200, "height": height}, color_scheme="light")
        tab.goto(page, wait_until="load")
        raw = Path(folder, "raw.png")
        tab.screenshot(path=raw)
        browser.close()
        with Image.open(raw) as image:
            image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(out, optimize=True)
    if (size := out.stat().st_size) >= LARGEST:
        raise RuntimeError(f"{out}: {size} bytes; expected less than {LARGEST}: lower its height")


def main() -> None:
    site = ROOT / "site/docs/index.html"
    if not site.exists():
        sys.exit(f"{site}: no site yet; run `make docs`")
    from bouquet import run

    picture(site.as_uri(), IMAGES / "site.png", 800)
    with tempfile.TemporaryDirectory() as folder:
        result = run(recipe="demo", runs_dir=folder, run_name="demo", progress="none")
        picture((result.path / "report.html").as_uri(), IMAGES / "report.png", 1000)


if __name__ == "__main__":
    main()
