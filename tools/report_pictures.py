"""Pictures of pages as a browser shows them, for the documentation; needs playwright and Chromium (`make browser-test`).

python tools/report_pictures.py PAGE.html PREFIX
python tools/report_pictures.py PAGE.html PREFIX --only 1280-dark
"""

import argparse
import shutil
from pathlib import Path
from typing import Literal

WIDTHS = 390, 1280
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
MOST_HEIGHT = 2600
"""Pixels of a page that a picture shows; the rest is more of the same."""


def main() -> None:
    """Take the pictures of one page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("prefix", help="of the pictures; -WIDTH-THEME.png is added")
    parser.add_argument("--only", help="one of them, such as 1280-dark")
    parser.add_argument("--height", type=int, default=MOST_HEIGHT)
    asked = parser.parse_args()
    from PIL import Image  # matplotlib brings it in
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for width in WIDTHS:
            for theme in THEMES:
                if asked.only not in (None, f"{width}-{theme}"):
                    continue
                tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
                tab.goto(asked.page.resolve().as_uri())
                height = min(asked.height, tab.evaluate("document.documentElement.scrollHeight"))
                path = f"{asked.prefix}-{width}-{theme}.png"
                tab.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
                with Image.open(path) as picture:
                    small = picture.convert("RGB").quantize(colors=128)
                small.save(path, optimize=True)
                print(f"{path}: {Path(path).stat().st_size} bytes")
        browser.close()


if __name__ == "__main__":
    main()
