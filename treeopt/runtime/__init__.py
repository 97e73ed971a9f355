"""Executing trees: models, caches, drafting, verification, the decode loop."""

from treeopt.runtime.checkpoint import load_model
from treeopt.runtime.decoder import Decoder
from treeopt.runtime.drafting_decoder import DraftingDecoder
from treeopt.runtime.dynamic import DynamicDecoder, DynamicDrafter
from treeopt.runtime.sampling import law
from treeopt.runtime.transformer import Transformer
from treeopt.runtime.verification import Verdict, Verifier, draw, verify, verify_greedy
from treeopt.sampling import Sampling

__all__ = [
    "Decoder",
    "DraftingDecoder",
    "DynamicDecoder",
    "DynamicDrafter",
    "Sampling",
    "Transformer",
    "Verdict",
    "Verifier",
    "draw",
    "law",
    "load_model",
    "verify",
    "verify_greedy",
]
