"""Drawing: style, labels that do not overlap, panels and SVG, for every figure."""
