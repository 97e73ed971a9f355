"""Compare the logits of EAGLE-3 heads with those of the package speculators' own model, on the same random weights.

    pip install speculators   # in an environment of its own: it wants another transformers
    python -m tests.support.check_speculators

Heads are written in speculators' layout for the bundled target, with each of its flags, and read by both.  Prints the
largest difference of logits for every case, with the target's states as they are and, as the control, one layer late.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.support.eagle_heads import make_head, save_head, speculators
from tests.support.passes import new_cache
from treeopt import bundled
from treeopt.runtime import Transformer, load_model
from treeopt.runtime.drafters.eagle import EagleHead, load_eagle
from treeopt.runtime.models.attention import SequenceAttention
from treeopt.runtime.models.model import HiddenStates, RequestedStates, SequenceInput

TEXT = b"import os\n\ndef read(path):\n    "
LAYER_IDS = (1, 3, 5)
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm before residual, part of the vocabulary": {"norm_before_residual": True, "ids": list(range(3, 200, 2))},
    "norm before fc": {"norm_before_fc": True},
    "fc norm, post-norm feedback": {"fc_norm": True, "norm_output": True},
}


def main() -> None:
    """Print a line for each case."""
    target = load_model(bundled.TARGET)
    assert isinstance(target, Transformer)
    for name, options in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            made = make_head(target, LAYER_IDS, scale=0.1, embedding=True, **options)
            save_head(speculators, Path(folder), made, target)
            head = load_eagle(folder, target)
            theirs = their_logits(folder, made, target, states_at(target, LAYER_IDS))
            late = their_logits(folder, made, target, states_at(target, tuple(each + 1 for each in LAYER_IDS)))
            ours = our_logits(head, target)
            found, control = ((ours - each).abs().max().item() for each in (theirs, late))
            print(
                f"{name}: largest difference {found:.1e} of logits up to {ours.abs().max():.1f}; one late {control:.1e}"
            )


def states_at(target: Transformer, layer_ids: tuple[int, ...]) -> HiddenStates:
    """Return the target's states of the text at some layer ids."""
    requested_states = RequestedStates(layer_ids=layer_ids, all_tokens=True)
    return target.prefill(torch.tensor(list(TEXT)), new_cache(target, len(TEXT)), requested_states)


def our_logits(head: EagleHead, target: Transformer) -> torch.Tensor:
    """Return treeopt's logits (T - 1, known tokens) of every slot of the text."""
    states, tokens = states_at(target, LAYER_IDS), torch.tensor(list(TEXT)[1:])
    rows = HiddenStates(tuple(each[:-1] for each in states.layers), None)
    attention = SequenceAttention.of(SequenceInput.causal(new_cache(head, len(TEXT)), tokens))
    with torch.inference_mode():
        logits = head.output(head.hidden(head.fuse(rows), tokens, attention)).logits
    return logits[:, logits[0].isfinite()]


def their_logits(folder: str, made: Any, target: Transformer, states: HiddenStates) -> torch.Tensor:
    """Return the package's logits of the same slots."""
    from speculators.models.eagle3 import core
    from transformers import LlamaConfig

    sizes = speculators(Path(folder), made, target)["transformer_layer_config"]
    config = core.Eagle3SpeculatorConfig(
        transformer_layer_config=LlamaConfig(**sizes, attn_implementation="eager"),
        draft_vocab_size=len(made.ids or range(target.config.vocabulary)),
        eagle_aux_hidden_state_layer_ids=list(made.layer_ids),
        **made.flags,
    )
    model = core.Eagle3DraftModel(config).eval()
    missing, unexpected = model.load_state_dict(load_file(Path(folder) / "model.safetensors"), strict=False)
    assert not unexpected, unexpected
    assert all("verifier" in each or each in ("d2t", "t2d") for each in missing), missing
    said: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda *given: said.append(given[-1]))
    tokens = torch.tensor(list(TEXT))
    hidden = torch.cat([each[:-1] for each in states.layers], -1)[None]
    with torch.no_grad():
        model(hidden, tokens[None, 1:], torch.zeros_like(tokens[None, 1:]), ttt_steps=1)
    return said[0][0]


if __name__ == "__main__":
    main()
