"""Check a built site: every link leads to a page and a place of it, and no page asks another host for anything.

Addresses elsewhere, which only a click asks for, are left alone.  Ends with 1 and a line for each fault.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

LOADED = {
    "script": "src",
    "img": "src",
    "source": "src",
    "iframe": "src",
    "audio": "src",
    "video": "src",
    "link": "href",
}
"""Attributes whose addresses a browser asks for by itself."""
NOT_LOADED = {"canonical", "alternate", "next", "prev", "license"}
"""Kinds of `link` that only name an address."""


@dataclass(slots=True)
class Page:
    """What a page refers to, and the places in it that others may refer to."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)


class Reader(HTMLParser):
    """Reads a page."""

    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what a tag refers to."""
        given = {name: value or "" for name, value in attrs}
        self.page.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.page.links.append(given["href"])
        if tag in LOADED and LOADED[tag] in given and given.get("rel") not in NOT_LOADED:
            self.page.loaded.append(given[LOADED[tag]])


def read_page(path: Path) -> Page:
    """Return what a page holds."""
    reader = Reader()
    reader.feed(path.read_text("utf-8"))
    reader.close()
    return reader.page


def faults(site: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """Yield a line for every link that leads nowhere, and for everything that another host is asked for."""
    for path, page in pages.items():
        where = path.relative_to(site)
        for address in page.loaded:
            if is_elsewhere(address):
                yield f"{where}: asks {urlsplit(address).netloc or address:.60}"
            elif not leads_to(path, address, pages):
                yield f"{where}: {address}"
        for address in page.links:
            if not is_elsewhere(address) and not leads_to(path, address, pages):
                yield f"{where}: {address}"


def is_elsewhere(address: str) -> bool:
    """Return whether an address is on another host, or none that is loaded, such as `mailto:`."""
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def leads_to(path: Path, address: str, pages: dict[Path, Page]) -> bool:
    """Return whether an address on a page is that of a file, and of a place in it where it names one."""
    if address.startswith("data:"):
        return True
    target, place = urldefrag(address)
    file = (path.parent / unquote(urlsplit(target).path)).resolve() if target else path
    file = file / "index.html" if file.is_dir() else file
    if not file.is_file():
        return False
    return not place or file not in pages or unquote(place) in pages[file].places


def main() -> None:
    """Check the site in the folder that is named."""
    site = Path(sys.argv[1]).resolve()
    pages = {path: read_page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    found = list(faults(site, pages))
    print(*found, sep="\n", end="\n" * bool(found))
    links = sum(len(page.links) + len(page.loaded) for page in pages.values())
    print(f"{len(pages)} pages, {links} links: {len(found)} faults. {site / 'index.html'}")
    sys.exit(1 if found or not pages else 0)


if __name__ == "__main__":
    main()
