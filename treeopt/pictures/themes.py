"""The same colours on light and on dark paper, for pages; those of picture files are `treeopt.pictures.style`'s."""

from dataclasses import dataclass

from treeopt.pictures import style


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours by what they are for; every one is `#rrggbb`."""

    paper: str
    panel: str
    ink: str
    muted: str
    line: str
    pale: str
    tree: str
    chain: str
    plain: str
    choice: str
    series: tuple[str, ...]
    """Of things that are told apart by colour, in this order."""


LIGHT = Theme(
    paper=style.WHITE,
    panel="#f6f8fa",
    ink=style.INK,
    muted=style.MUTED,
    line=style.LINE,
    pale=style.PALE,
    tree=style.TREE,
    chain=style.CHAIN,
    plain=style.PLAIN,
    choice=style.CHOICE,
    series=style.SERIES,
)
DARK = Theme(
    paper="#12161c",
    panel="#1a2028",
    ink="#e6e9ee",
    muted="#a3adb9",
    line="#566070",
    pale="#2a323d",
    tree="#4aa8e8",
    chain=style.ORANGE,
    plain="#a3adb9",
    choice="#ff7a33",
    series=("#3f9be0", style.ORANGE, "#10b981", "#c4e8fc", "#d9481c", "#dc93bb"),
)
