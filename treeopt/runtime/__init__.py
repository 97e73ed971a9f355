"""Executing trees: models, caches, drafting, verification, the decode loop."""

from treeopt.runtime.checkpoint import load_model
from treeopt.runtime.decoder import Decoder
from treeopt.runtime.sampling import draw, probabilities
from treeopt.runtime.transformer import Transformer
from treeopt.runtime.verification import Verdict, verify, verify_greedy

__all__ = ["Decoder", "Transformer", "Verdict", "draw", "load_model", "probabilities", "verify", "verify_greedy"]
