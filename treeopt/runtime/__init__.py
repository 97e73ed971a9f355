"""Executing trees: models, caches, drafting, verification, the decode loop."""

from treeopt.records.sampling import Sampling
from treeopt.runtime.decoding.decoder import Decoder
from treeopt.runtime.drafters.expanding_drafter import ExpandingDrafter
from treeopt.runtime.models.transformer import Transformer
from treeopt.runtime.models.weights import load_model
from treeopt.runtime.rules.distributions import distribution
from treeopt.runtime.rules.verify import Verdict, Verifier, draw, verify, verify_greedy

__all__ = [
    "Decoder",
    "ExpandingDrafter",
    "Sampling",
    "Transformer",
    "Verdict",
    "Verifier",
    "distribution",
    "draw",
    "load_model",
    "verify",
    "verify_greedy",
]


def __dir__() -> list[str]:
    return __all__
