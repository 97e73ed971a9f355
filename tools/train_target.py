"""Train the bundled target: a byte-level Llama on the Python standard library's sources.

    python tools/train_target.py --output build/pair/target

It takes an hour on two cores. Matrices of the layers are trained with Muon, other weights with AdamW. Three quarters of the
steps use short windows, the last quarter windows of the full length.
"""

import argparse
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import corpus
import torch
from torch.nn.functional import cross_entropy
from tqdm import tqdm

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

TRAINED_TOKENS = 1024
TOKENS_PER_STEP = 8192
HEADS = 4
HELD_OUT_WINDOWS = 48


def new_llama(*, seed: int, hidden: int, layers: int, head_size: int, tied_head: bool) -> "LlamaForCausalLM":
    """Return an untrained model over bytes with half as many key-value heads as heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=hidden,
            intermediate_size=hidden * 11 // 4,
            num_hidden_layers=layers,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS // 2,
            head_dim=head_size,
            max_position_embeddings=TRAINED_TOKENS,
            tie_word_embeddings=tied_head,
            bos_token_id=corpus.SEPARATOR,
            eos_token_id=corpus.SEPARATOR,
            pad_token_id=None,
        )
    )


def load_llama(folder: Path) -> "LlamaForCausalLM":
    """Return the model of a folder in float32, in evaluation mode."""
    from transformers import LlamaForCausalLM

    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model


def optimizers(model: torch.nn.Module, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices inside the layers and AdamW for embeddings, head and norms."""
    layer_matrices = [p for name, p in model.named_parameters() if "layers" in name and p.ndim == 2]
    muon_ids = {id(p) for p in layer_matrices}
    other = [p for p in model.parameters() if id(p) not in muon_ids]
    return [
        torch.optim.Muon(layer_matrices, lr=learning_rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(other, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def update_weights(
    loss: torch.Tensor, optimizers: Sequence[torch.optim.Optimizer], learning_rate: float, *, max_norm: float = 1.0
) -> None:
    """Take one step with each optimizer, with gradients clipped to a norm."""
    loss.backward()
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    torch.nn.utils.clip_grad_norm_([weight for group in groups for weight in group["params"]], max_norm)
    for group in groups:
        group["lr"] = learning_rate
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def schedule(progress: float) -> float:
    """Return the learning-rate factor: 3 % warm-up, then a cosine to 2 %."""
    if progress < 0.03:
        return progress / 0.03
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (progress - 0.03) / 0.97))


@torch.no_grad()
def held_out_loss(model: torch.nn.Module) -> float:
    """Return the mean next-byte loss in nats over evenly spaced held-out windows."""
    stream = corpus.byte_stream(held_out=True)
    starts = torch.linspace(0, len(stream) - TRAINED_TOKENS - 1, HELD_OUT_WINDOWS).long()
    losses = []
    for start in starts.tolist():
        ids = stream[start : start + TRAINED_TOKENS + 1].long()[None]
        logits = model(ids[:, :-1]).logits
        losses.append(cross_entropy(logits[0], ids[0, 1:]).item())
    return sum(losses) / len(losses)


def write_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Write files to a folder once all of them are complete; an interruption leaves the folder as it was.

    Args:
        folder: may exist; files of other names stay.
        write: writes the files to the folder in its argument.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        write(Path(temporary))
        folder.mkdir(exist_ok=True)
        for file in Path(temporary).iterdir():
            file.replace(folder / file.name)


def train(model: "LlamaForCausalLM", *, steps: int, learning_rate: float) -> None:
    """Train in place."""
    optimizer_pair = optimizers(model, learning_rate)
    generator = torch.Generator().manual_seed(0)
    stream = corpus.byte_stream(held_out=False)
    short, full = (corpus.windows(stream, tokens, generator) for tokens in (256, TRAINED_TOKENS))
    bar = tqdm(range(steps), desc="target")
    for step in bar:
        source, window_tokens = (short, 256) if step < 0.75 * steps else (full, TRAINED_TOKENS)
        batch = torch.stack([next(source) for _ in range(TOKENS_PER_STEP // window_tokens)])
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(batch[:, :-1]).logits
        loss = cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        update_weights(loss, optimizer_pair, learning_rate * schedule((step + 1) / steps))
        bar.set_postfix(loss=f"{loss.item():.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for the target")
    parser.add_argument("--steps", type=int, default=1600, help="optimizer steps (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="maximum (default: %(default)s)")
    args = parser.parse_args()
    model = new_llama(seed=0, hidden=256, layers=8, head_size=64, tied_head=False)
    train(model, steps=args.steps, learning_rate=args.learning_rate)
    print(f"held-out loss {held_out_loss(model):.4f} nats per byte")
    write_folder(args.output, model.half().save_pretrained)


if __name__ == "__main__":
    main()
