"""Figures as SVG: small, with text that stays text, tooltips, and colours that a page may set."""

import io
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from treeopt.pictures.style import FONTS, LIGHT, TINTS, house_style, tint

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_TIP = "tip:"
_NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")
_COMMAND = re.compile(r"([MLCQz])([^MLCQz]*)")
_VARIABLES = {
    tint(step / TINTS): f"color-mix(in srgb,var(--tree) {100 * step / TINTS:g}%,var(--panel))" for step in range(TINTS)
} | {colour: f"var(--{name})" for name, colour in LIGHT.items()}
_DROPPED = {"opacity": "1", "stroke-linejoin": "round", "stroke-linecap": "butt", "stroke-width": "1"}
"""What `svg` elements hand down, or have by default."""


def tip(artist: "Artist", *texts: str) -> None:
    """Give an artist a tooltip in SVG; an artist of several marks takes one for each, in order."""
    artist.set_gid(_TIP + json.dumps([text.encode("utf-8", "replace").decode() for text in texts]))


def svg_text(figure: "Figure", *, name: str = "", on_page: bool = False) -> str:
    """Return a figure as one `svg` element.

    Args:
        figure: what to write.
        name: begins the ids within, so that figures of one page differ.
        on_page: leave out the background, and name colours by CSS variables (`treeopt.pictures.style.LIGHT`).
    """
    buffer = io.StringIO()
    with house_style():
        paper = "none" if on_page else "auto"
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, facecolor=paper)
    root = ET.fromstring(buffer.getvalue())
    for child in list(root):
        if child.tag in (f"{_SVG}metadata", f"{_SVG}defs") and child.find(f"{_SVG}clipPath") is None:
            root.remove(child)  # the one holds nothing, the other a style that pages do not allow
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "width": root.attrib["width"].removesuffix("pt"),
        "height": root.attrib["height"].removesuffix("pt"),
        "font-family": FONTS,
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
    }
    names = _names(root, name)
    parent = ET.Element("none")
    _compact(root, parent, names, _VARIABLES if on_page else {})
    (compact,) = parent
    compact.attrib |= {"role": "img", "aria-labelledby": f"{name}-title"} if on_page else {"xmlns": _SVG[1:-1]}
    return ET.tostring(compact, encoding="unicode")


def _names(root: ET.Element, name: str) -> dict[str, str]:
    """Return a short id for each of those that something refers to."""
    text = ET.tostring(root, encoding="unicode")
    used = dict.fromkeys(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    return {each: f"{name or 'm'}_{place}" for place, each in enumerate(used)}


def _compact(element: ET.Element, parent: ET.Element, names: dict[str, str], colours: dict[str, str]) -> None:
    """Append an element to a parent, with what says nothing left out; groups that only group are not made."""
    tag = element.tag.removeprefix(_SVG) if isinstance(element.tag, str) else ""
    attributes = _attributes(element, names, colours)
    tips = json.loads(identity[len(_TIP) :]) if (identity := element.get("id", "")).startswith(_TIP) else []
    made = parent
    if tips or attributes or tag != "g":
        made = ET.SubElement(parent, tag, attributes)
        made.text = (element.text or "").strip() or None if tag != "text" else element.text
    for child in element:
        _compact(child, made, names, colours)
    if tips:
        _add_tips(made, tips)
    if made is not parent:
        _hoist(made)


def _hoist(group: ET.Element) -> None:
    """Move to a group what all its marks have in common."""
    marks = [each for each in group if each.tag == "use"]
    if len(marks) < 2 or len(marks) != len([each for each in group if each.tag != "title"]):
        return
    for name, value in list(marks[0].attrib.items()):
        if name not in ("x", "y", "href") and all(mark.get(name) == value for mark in marks):
            group.set(name, value)
            for mark in marks:
                del mark.attrib[name]


def _add_tips(made: ET.Element, tips: list[str]) -> None:
    if len(tips) == 1:
        ET.SubElement(made, "title").text = tips[0]
        return
    marks = [each for each in made.iter() if each.tag in ("use", "path")]
    marks = [each for each in marks if each.tag == "use"] or [each for each in marks if "id" not in each.attrib]
    for mark, text in zip(marks, tips, strict=True):
        ET.SubElement(mark, "title").text = text


def _attributes(element: ET.Element, names: dict[str, str], colours: dict[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in element.attrib.items():
        if name == "id":
            if value in names:
                found["id"] = names[value]
        elif name == _LINK:
            found["href"] = f"#{names[value[1:]]}" if value[1:] in names else value
        elif name == "clip-path":
            found[name] = f"url(#{names[value[5:-1]]})"
        elif name == "d":
            found[name] = _short_path(value, _two_digits if element.get("id") in names else _one_digit)
        elif name == "style":
            found |= _properties(value, colours)
        elif name in ("x", "y", "transform", "width", "height") and not element.tag.endswith("image"):
            if not value.startswith("rotate(-0 "):
                found[name] = _NUMBER.sub(_one_digit, value)
        else:
            found[name] = value
    return found


def _properties(style: str, colours: dict[str, str]) -> dict[str, str]:
    """Return CSS as attributes, which a page's policy allows where it forbids styles."""
    found: dict[str, str] = {}
    for each in style.split(";"):
        name, _, value = (part.strip() for part in each.partition(":"))
        if name == "font":  # weight, size and family, of which the whole has the last
            weight, size = re.fullmatch(r"(?:(\d+|bold) )?([\d.]+)px .*", value).groups()  # type: ignore[union-attr]
            found |= {"font-size": size} | ({"font-weight": weight} if weight else {})
        elif name in ("font-size", "font-weight"):
            found[name] = value.removesuffix("px")
        elif name in ("fill", "stroke"):
            found[name] = colours.get(value, value)
        elif name in ("stroke-width", "stroke-dasharray", "stroke-dashoffset"):
            found[name] = _NUMBER.sub(_two_digits, value)
        elif name and name != "font-family" and _DROPPED.get(name) != value:
            found[name] = value
    return found


def _short_path(path: str, form: Callable[[re.Match[str]], str]) -> str:
    r"""Return a path with short numbers, and level and upright lines by their one coordinate.

    >>> _short_path("M 1.26 3.0 \nL 4 5.55 \nL 4 9 \nL 7 9 \nz", _one_digit)
    'M1.3 3L4 5.5V9H7z'
    """
    parts, last = [], ("", "")
    for command, text in _COMMAND.findall(path):
        numbers = [form(number) for number in _NUMBER.finditer(text)]
        x, y = (*last, *numbers)[-2:]
        if command == "L" and x == last[0]:
            parts.append(f"V{y}")
        elif command == "L" and y == last[1]:
            parts.append(f"H{x}")
        else:
            parts.append(command + " ".join(numbers))
        last = (x, y)
    return "".join(parts)


def _one_digit(number: re.Match[str]) -> str:
    text = f"{float(number[0]):.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def _two_digits(number: re.Match[str]) -> str:
    text = f"{float(number[0]):.2f}".rstrip("0").removesuffix(".")
    return "0" if text == "-0" else text
