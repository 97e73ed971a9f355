"""Any causal language model of transformers as a model that treeopt decodes and measures."""

from treeopt.runtime.models.hf.loading import Placement, load_adapter

__all__ = ["Placement", "load_adapter"]
