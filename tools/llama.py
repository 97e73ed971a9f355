"""Models of the bundled pair, as transformers load them; transformers are imported when one is asked for."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


def load_llama(folder: Path) -> "LlamaForCausalLM":
    """Return a model of a folder in float32, to be run and not trained."""
    from transformers import LlamaForCausalLM

    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model
