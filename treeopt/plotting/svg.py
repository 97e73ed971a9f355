"""Figures as small SVG, with text as text, tooltips, and colours that a page can set."""

import io
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from treeopt.plotting.style import FONTS, LIGHT, TINTS, house_style, tint

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
"""Defaults, and values that elements inherit from `svg`."""


def set_tooltips(artist: "Artist", *texts: str) -> None:
    """Set the tooltip of an artist in SVG, or one for each of its marks."""
    artist.set_gid(_TIP + json.dumps([text.encode("utf-8", "replace").decode() for text in texts]))


def svg_text(figure: "Figure", *, name: str = "", on_page: bool = False) -> str:
    """Return a figure as one `svg` element.

    Args:
        figure: to write.
        name: prefix of the ids in it, so that figures of one page differ.
        on_page: leave out the background, and use CSS variables for colours (`treeopt.plotting.style.LIGHT`).
    """
    buffer = io.StringIO()
    with house_style():
        paper = "none" if on_page else "auto"
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, facecolor=paper)
    root = ET.fromstring(buffer.getvalue())
    for child in list(root):
        if child.tag in (f"{_SVG}metadata", f"{_SVG}defs") and child.find(f"{_SVG}clipPath") is None:
            root.remove(child)  # metadata is empty, and a page does not allow the style in defs
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "width": root.attrib["width"].removesuffix("pt"),
        "height": root.attrib["height"].removesuffix("pt"),
        "font-family": FONTS,
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
    }
    parent = ET.Element("none")
    _compact(root, parent, _short_ids(root, name), _VARIABLES if on_page else {})
    (compact,) = parent
    compact.attrib |= {"role": "img", "aria-labelledby": f"{name}-title"} if on_page else {"xmlns": _SVG[1:-1]}
    return ET.tostring(compact, encoding="unicode")


def _short_ids(root: ET.Element, name: str) -> dict[str, str]:
    """Return a short id for each id that an element refers to."""
    text = ET.tostring(root, encoding="unicode")
    used_ids = dict.fromkeys(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    return {used_id: f"{name or 'm'}_{index}" for index, used_id in enumerate(used_ids)}


def _compact(element: ET.Element, parent: ET.Element, ids: dict[str, str], colours: dict[str, str]) -> None:
    """Append a copy of an element to a parent, without default attributes and without groups that only group."""
    tag = element.tag.removeprefix(_SVG) if isinstance(element.tag, str) else ""
    attributes = _attributes(element, ids, colours)
    element_id = element.get("id", "")
    tooltips = json.loads(element_id[len(_TIP) :]) if element_id.startswith(_TIP) else []
    copy = parent
    if tooltips or attributes or tag != "g":
        copy = ET.SubElement(parent, tag, attributes)
        copy.text = (element.text or "").strip() or None if tag != "text" else element.text
    for child in element:
        _compact(child, copy, ids, colours)
    if tooltips:
        _add_tooltips(copy, tooltips)
    if copy is not parent:
        _hoist(copy)


def _hoist(group: ET.Element) -> None:
    """Move attributes that all marks of a group share to the group."""
    marks = [child for child in group if child.tag == "use"]
    if len(marks) < 2 or len(marks) != len([child for child in group if child.tag != "title"]):
        return
    for name, value in list(marks[0].attrib.items()):
        if name not in ("x", "y", "href") and all(mark.get(name) == value for mark in marks):
            group.set(name, value)
            for mark in marks:
                del mark.attrib[name]


def _add_tooltips(element: ET.Element, texts: list[str]) -> None:
    if len(texts) == 1:
        ET.SubElement(element, "title").text = texts[0]
        return
    marks = list(element.iter("use")) or [path for path in element.iter("path") if "id" not in path.attrib]
    for mark, text in zip(marks, texts, strict=True):
        ET.SubElement(mark, "title").text = text


def _attributes(element: ET.Element, ids: dict[str, str], colours: dict[str, str]) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for name, value in element.attrib.items():
        if name == "id":
            if value in ids:
                attributes["id"] = ids[value]
        elif name == _LINK:
            attributes["href"] = f"#{ids[value[1:]]}" if value[1:] in ids else value
        elif name == "clip-path":
            attributes[name] = f"url(#{ids[value[5:-1]]})"
        elif name == "d":
            attributes[name] = _short_path(value, _two_digits if element.get("id") in ids else _one_digit)
        elif name == "style":
            attributes |= _properties(value, colours)
        elif name in ("x", "y", "transform", "width", "height") and not element.tag.endswith("image"):
            if not value.startswith("rotate(-0 "):
                attributes[name] = _NUMBER.sub(_one_digit, value)
        else:
            attributes[name] = value
    return attributes


def _properties(style: str, colours: dict[str, str]) -> dict[str, str]:
    """Return CSS as attributes, which are allowed where a page's policy forbids styles."""
    attributes: dict[str, str] = {}
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":  # weight, size and family; the family is an attribute of `svg`
            weight, size = re.fullmatch(r"(?:(\d+|bold) )?([\d.]+)px .*", value).groups()  # type: ignore[union-attr]
            attributes |= {"font-size": size} | ({"font-weight": weight} if weight else {})
        elif name in ("font-size", "font-weight"):
            attributes[name] = value.removesuffix("px")
        elif name in ("fill", "stroke"):
            attributes[name] = colours.get(value, value)
        elif name in ("stroke-width", "stroke-dasharray", "stroke-dashoffset"):
            attributes[name] = _NUMBER.sub(_two_digits, value)
        elif name and name != "font-family" and _DROPPED.get(name) != value:
            attributes[name] = value
    return attributes


def _short_path(path: str, form: Callable[[re.Match[str]], str]) -> str:
    r"""Return a path with short numbers, and with horizontal and vertical lines as one coordinate.

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
