"""Compare the logits of P-EAGLE heads with those of the package speculators' own model, on the same random weights.

    pip install speculators   # in an environment of its own: it wants another transformers
    python -m tests.support.check_p_eagle [FIXTURE]

Prints the largest difference of logits for every case, and as controls the one without `mask_hidden` and with the masks
one position later.  With a path, writes the logits that tests/runtime/drafters/eagle/test_p_eagle.py compares with.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file

from tests.support.eagle_heads import LEVELS, MASK_TOKEN, MadeHead, make_head, save_head, speculators_p_eagle

SIZES: Any = SimpleNamespace(config=SimpleNamespace(hidden=32, vocabulary=23))
"""Of the target of the tests; heads with an embedding read nothing else of it."""
SOME = [1, 2, 5, 6, 9, 11, 14, 15, 20, 22]
TOKENS = [3, 14, 15, 9, 2, 6, 5, 11, 20]
ROOT = len(TOKENS) - LEVELS
"""Place of the root; the tokens after it are hidden from it."""
CASES: dict[str, dict[str, Any]] = {
    "two layers, part of the vocabulary": {"layers": 2, "ids": SOME},
    "norm before residual": {"norm_before_residual": True},
    "norm before fc": {"norm_before_fc": True},
    "fc norm": {"fc_norm": True},
}
FIXTURE_CASE: dict[str, Any] = {"layers": 2, "ids": SOME, "norm_before_residual": True}


def main() -> None:
    """Print a line for each case, and write the fixture."""
    for name, options in CASES.items():
        made = make_case(options)
        theirs, ours = their_logits(made), our_logits(made)
        zeroed = MadeHead(**{**vars(made), "weights": made.weights | {"mask_hidden": torch.zeros(1, 1, 96)}})
        differences = [(logits - ours).abs() for logits in (theirs, their_logits(zeroed), their_logits(made, later=1))]
        found, *controls = (difference.max().item() for difference in differences)
        root = max(difference[0].max().item() for difference in differences)
        print(
            f"{name}: largest difference {found:.1e} of logits up to {ours.abs().max():.1f}, {root:.1e} at the root; "
            f"without mask_hidden {controls[0]:.1e}, masks later {controls[1]:.1e}"
        )
    if len(sys.argv) > 1:
        write_fixture(Path(sys.argv[1]))


def make_case(options: dict[str, Any]) -> MadeHead:
    return make_head(SIZES, (1, 3, 8), scale=0.2, embedding=True, mask=True, **options)


def write_fixture(path: Path) -> None:
    rows = [[round(value, 6) for value in row] for row in their_logits(make_case(FIXTURE_CASE)).tolist()]
    content = {"head": FIXTURE_CASE, "tokens": TOKENS[: ROOT + 1], "logits": rows}
    path.write_text(json.dumps(content) + "\n")


def states() -> list[torch.Tensor]:
    """Return random states at three layers, each (T - 1, hidden), as the tests make them."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randn((len(TOKENS) - 1, 32), generator=generator) for _ in range(3)]


def our_logits(made: MadeHead) -> torch.Tensor:
    """Return the logits (levels, known tokens) after the root, by the slow twin of the tests."""
    from tests.support.slow_eagle import SlowEagle

    rows = [[layer[row].double().numpy() for layer in states()] for row in range(ROOT)]
    logits = torch.from_numpy(SlowEagle(made, None, None).levels_after(rows, TOKENS[: ROOT + 1], MASK_TOKEN, LEVELS))
    return logits[:, logits[0].isfinite()]


def every_anchor(seq_length: int, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all anchors at all depths within a sequence, where training samples some."""
    pairs = [(anchor, depth) for depth in range(LEVELS) for anchor in range(seq_length - depth)]
    anchors, depths = torch.tensor(pairs).T
    return anchors, depths


def their_logits(made: MadeHead, *, later: int = 0) -> torch.Tensor:
    """Return the package's logits (levels, draft tokens) after the root, the masks `later` positions after theirs."""
    from speculators.models.peagle import core
    from transformers import LlamaConfig

    with tempfile.TemporaryDirectory() as folder:
        save_head(speculators_p_eagle, Path(folder), made, SIZES)
        content = json.loads((Path(folder) / "config.json").read_text())
        weights = load_file(Path(folder) / "model.safetensors")
    config = core.PEagleSpeculatorConfig(
        transformer_layer_config=LlamaConfig(**content["transformer_layer_config"], attn_implementation="eager"),
        draft_vocab_size=len(made.ids or range(23)),
        eagle_aux_hidden_state_layer_ids=list(made.layer_ids),
        mask_token_id=MASK_TOKEN,
        **made.flags,
    )
    model = core.PEagleDraftModel(config).eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert all("verifier" in name or name in ("d2t", "t2d") for name in missing), missing
    seen: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda *arguments: seen.append(arguments[-1]))
    model.rotary_emb.forward = _shift_masks(model.rotary_emb.forward, len(TOKENS) - 1, later)
    core.generate_cod_sample_indices = every_anchor
    core.compute_metrics = lambda **_: (None, {})
    with torch.no_grad():
        model(
            torch.cat(states(), -1)[None],
            torch.tensor(TOKENS)[None, 1:],
            torch.zeros((1, len(TOKENS) - 1), dtype=torch.int64),
            verifier_last_hidden_states=torch.zeros(1, len(TOKENS) - 1, 32),
        )
    anchors, _ = every_anchor(len(TOKENS) - 1)
    return seen[0][0][anchors == ROOT - 1]


def _shift_masks(forward: Callable[..., Any], depth_0: int, later: int) -> Callable[..., Any]:
    """Return rotations at positions of which those after the rows of depth 0 are `later`."""

    def shifted(x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        moved = position_ids.clone()
        moved[:, depth_0:] += later
        return forward(x, moved)

    return shifted


if __name__ == "__main__":
    main()
