"""Executing trees: models, caches, drafting, verification, the decode loop.

Submodules come by attribute too, `treeopt.runtime.models.pair`, and are imported when they are first used (PEP 562).
"""

from importlib import import_module
from types import ModuleType

from treeopt.records.sampling import Sampling
from treeopt.runtime.decoding.decoder import Decoder
from treeopt.runtime.decoding.earlier_names import DraftingDecoder, DynamicDecoder
from treeopt.runtime.drafters.dynamic_tree import DynamicDrafter
from treeopt.runtime.models.transformer import Transformer
from treeopt.runtime.models.weights import load_model
from treeopt.runtime.rules.distributions import distribution
from treeopt.runtime.rules.verify import Verdict, Verifier, draw, verify, verify_greedy

__all__ = [
    "Decoder",
    "DraftingDecoder",
    "DynamicDecoder",
    "DynamicDrafter",
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

law = distribution
"""Its former name."""

SUBMODULES = frozenset(
    {
        "adapter",
        "config",
        "decoding",
        "drafters",
        "folder",
        "huggingface",
        "memory",
        "models",
        "pair",
        "prompts",
        "rules",
        "tokenizer",
    }
)
"""Those that a user of the library may want, under former names too; the others are parts of the decoders."""


def __getattr__(name: str) -> ModuleType:
    """Import a submodule on first use."""
    if name not in SUBMODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    """Return the public names: what tab completion shows."""
    return [*__all__, *SUBMODULES]
