"""How often drafts are accepted: position by position, prompt by prompt."""

from treeopt.profiler.acceptance.positions import AcceptanceText, TextPositions, texts_together

__all__ = ["AcceptanceText", "TextPositions", "texts_together"]
