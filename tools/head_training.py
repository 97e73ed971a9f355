"""Training of heads on the bundled target: their data, their loop and their evaluation.

Most training sequences are windows of the corpus; the others are sampled from the target, which costs more. The target's
hidden states on them are computed once per target, in a few minutes on one core, and stored in build/heads.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from zlib import crc32

import corpus
import torch
from safetensors.torch import save_file
from teacher_outputs import measure_fastest_dtype
from torch import Tensor, nn
from tqdm import tqdm
from train_draft import divergence, sample_sequences
from train_target import load_llama, optimizers, schedule, update_weights, write_folder

from treeopt.runtime import Transformer, load_model
from treeopt.runtime.drafters.eagle.load import default_layer_ids
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.model import RequestedStates

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

STORE = Path("build/heads")
SEQUENCE_TOKENS = 512
SEQUENCES_PER_STEP = 4
HELD_OUT_SEQUENCES = 32
BATCH_SEQUENCES = 8
"""Sequences in a forward pass of the target."""
MUON_TO_ADAM = 5.0
"""Learning rate of Muon over that of AdamW, which replaces it where bfloat16 is slow."""
LogitPairs = list[tuple[Tensor, Tensor]]
"""For every draft depth: the head's logits and the target's at the same positions, (…, V) each."""
Head = TypeVar("Head", bound=nn.Module)


class TargetStates(NamedTuple):
    """Sequences and the target's hidden states at each of their tokens."""

    last: Tensor
    """float16 (N, T, hidden): after the final norm."""
    tokens: Tensor
    """int64 (N, T)."""
    layers: Tensor
    """float16 (N, T, 3 hidden): the residual stream at the default layers; (N, T, 0) for heads that do not read it."""

    def select(self, sequences: Tensor | slice) -> "TargetStates":
        """Return some sequences, their states in float32."""
        return TargetStates(self.last[sequences].float(), self.tokens[sequences], self.layers[sequences].float())


def load_last_states(target: "LlamaForCausalLM", *, sequences: int = 384, corpus_windows: int = 1920) -> TargetStates:
    """Return sampled sequences and windows of the corpus, shuffled, with the target's last hidden states.

    Args:
        target: the model in transformers.
        sequences: number of sampled sequences, a multiple of 48.
        corpus_windows: number of windows of the corpus.
    """
    path = STORE / f"last_states_{weights_checksum(target):08x}_{sequences}_{corpus_windows}.pt"
    last, tokens = load_or_compute(path, lambda: compute_last_states(target, sequences, corpus_windows))
    return TargetStates(last, tokens, last.new_empty((*tokens.shape, 0)))


def load_layer_states(folder: Path, target: Transformer, sequences: int, corpus_windows: int) -> TargetStates:
    """Return sampled sequences shuffled with windows of the corpus, and the target's hidden states.

    The last HELD_OUT_SEQUENCES windows stay at the end: they are not trained on with fewer windows either.
    """
    llama = load_llama(folder)
    key = f"{weights_checksum(llama):08x}_{sequences}"

    def compute() -> tuple[Tensor, Tensor, Tensor]:
        sampled = load_or_compute(STORE / f"sequences_{key}.pt", lambda: sample_training_sequences(llama, sequences))
        tokens = torch.cat([sampled, take_corpus_windows(corpus_windows)])
        order = torch.randperm(len(tokens) - HELD_OUT_SEQUENCES, generator=torch.Generator().manual_seed(7))
        return compute_layer_states(target, torch.cat([tokens[order], tokens[-HELD_OUT_SEQUENCES:]]))

    layers, last, tokens = load_or_compute(STORE / f"layer_states_{key}_{corpus_windows}.pt", compute)
    return TargetStates(last, tokens, layers)


def weights_checksum(model: nn.Module) -> int:
    """Return the CRC-32 of a model's weights."""
    checksum = 0
    for weight in model.parameters():
        checksum = crc32(weight.detach().float().contiguous().numpy().tobytes(), checksum)
    return checksum


def load_or_compute(path: Path, compute: Callable[[], Any]) -> Any:
    """Return the content of a file; compute and write it if there is none."""
    if not path.is_file():
        start_s = time.perf_counter()
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        torch.save(compute(), unfinished)
        unfinished.rename(path)
        print(f"{path}: computed in {(time.perf_counter() - start_s) / 60:.1f} minutes")
    return torch.load(path, weights_only=True)


def sample_training_sequences(target: "LlamaForCausalLM", count: int) -> Tensor:
    return sample_sequences(target, count, SEQUENCE_TOKENS, torch.Generator().manual_seed(5))


def take_corpus_windows(count: int) -> Tensor:
    """Return int64 (count, SEQUENCE_TOKENS) windows of the training corpus."""
    stream = corpus.windows(corpus.byte_stream(held_out=False), SEQUENCE_TOKENS, torch.Generator().manual_seed(6))
    return torch.stack([next(stream)[:-1] for _ in range(count)])


@torch.no_grad()
def compute_last_states(target: "LlamaForCausalLM", sequences: int, corpus_windows: int) -> tuple[Tensor, Tensor]:
    """Return float16 (N, T, hidden) last hidden states and int64 (N, T) tokens."""
    tokens = torch.cat([sample_training_sequences(target, sequences), take_corpus_windows(corpus_windows)])
    tokens = tokens[torch.randperm(len(tokens), generator=torch.Generator().manual_seed(7))]
    last = torch.empty((*tokens.shape, target.config.hidden_size), dtype=torch.float16)
    for start in tqdm(range(0, len(tokens), BATCH_SEQUENCES), desc="hidden states"):
        batch = slice(start, start + BATCH_SEQUENCES)
        with torch.autocast("cpu", torch.bfloat16):
            last[batch] = target.model(tokens[batch]).last_hidden_state
    return last, tokens


def compute_layer_states(target: Transformer, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `layers`, `last` and `tokens` of `TargetStates` for int64 (N, T) tokens."""
    requested_states = RequestedStates(layer_ids=default_layer_ids(len(target.weights.layers)), last=True)
    hidden = target.config.hidden
    layers = torch.empty((*tokens.shape, len(requested_states.layer_ids) * hidden), dtype=torch.float16)
    last = torch.empty((*tokens.shape, hidden), dtype=torch.float16)
    for start in tqdm(range(0, len(tokens), BATCH_SEQUENCES), desc="hidden states"):
        batch = slice(start, start + BATCH_SEQUENCES)
        states = target.compute_states(tokens[batch], requested_states)
        assert states.last is not None  # it was requested
        layers[batch], last[batch] = torch.cat(states.layers, -1), states.last
    return layers, last, tokens


def head_parser(description: str | None, *, steps: int, learning_rate: float) -> argparse.ArgumentParser:
    """Return a parser with the options that all heads have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="folder of the target")
    parser.add_argument("--output", type=Path, required=True, help="folder for the head")
    parser.add_argument("--steps", type=int, default=steps, help="optimizer steps (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=learning_rate, help="maximum (default: %(default)s)")
    return parser


def train_from_layer_states(
    title: str,
    build: Callable[[Transformer, Tensor], Head],
    predict: Callable[[Head, TargetStates, torch.Generator], LogitPairs],
    save: Callable[[Head, int, Path], None],
    load: Callable[[Head, Path], None],
    *,
    description: str | None,
    depth_weight: float,
    steps: int,
) -> None:
    """Run the command line of a script that trains a head on hidden states of several layers.

    Args:
        title: of the progress bar.
        build: returns an untrained head for the target and its output layer, float32 (V, hidden).
        predict: returns a head's logits and the target's on some sequences; may draw positions with the generator.
        save: writes a head, for a target of that many layers, to a folder.
        load: reads what `save` wrote.
        description: of the script.
        depth_weight: weight of a depth's loss over that of the previous depth.
        steps: the default.
    """
    parser = head_parser(description, steps=steps, learning_rate=5e-3)
    parser.add_argument("--sequences", type=int, default=96, help="sequences to sample from the target (default: 96)")
    parser.add_argument("--corpus-windows", type=int, default=672, help="windows of the corpus (default: 672)")
    parser.add_argument("--start", type=Path, help="folder of a head to continue from")
    args = parser.parse_args()
    target = load_model(args.target)
    states = load_layer_states(args.target, target, args.sequences, args.corpus_windows)
    torch.manual_seed(9)
    head = build(target, load_llama(args.target).lm_head.weight.detach())
    if args.start is not None:
        load(head, args.start)
    train_head(
        head,
        lambda batch, generator: predict(head, batch, generator),
        states,
        depth_weight=depth_weight,
        steps=args.steps,
        learning_rate=args.learning_rate,
        title=title,
        save=lambda folder: save(head, len(target.weights.layers), folder),
        output=args.output,
    )


def train_head(
    head: nn.Module,
    predict: Callable[[TargetStates, torch.Generator], LogitPairs],
    states: TargetStates,
    *,
    depth_weight: float,
    steps: int,
    learning_rate: float,
    title: str,
    save: Callable[[Path], object],
    output: Path,
) -> None:
    """Train a head in place on all but the last sequences; print its agreement with the target on those.

    Args:
        head: the module to train.
        predict: returns its logits and the target's on some sequences; may draw positions with the generator.
        states: the training data.
        depth_weight: weight of a depth's loss over that of the previous depth.
        steps: of the optimizer.
        learning_rate: its maximum.
        title: of the progress bar.
        save: writes the head to a folder.
        output: the folder; an interrupted training leaves it as it was.
    """
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    dtype = measure_fastest_dtype()
    optimizer_pair: list[torch.optim.Optimizer] = list(optimizers(head, learning_rate))
    if dtype != torch.bfloat16:  # Muon orthogonalizes in bfloat16, which takes seconds without instructions for it
        learning_rate /= MUON_TO_ADAM
        adam = torch.optim.AdamW(head.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
        optimizer_pair = [adam]
    training_sequences = len(states.tokens) - HELD_OUT_SEQUENCES
    batch_generator, generator = torch.Generator().manual_seed(8), torch.Generator().manual_seed(10)
    bar = tqdm(range(steps), desc=title)
    for step in bar:
        batch = torch.randint(training_sequences, (SEQUENCES_PER_STEP,), generator=batch_generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            pairs = predict(states.select(batch), generator)
        weights = [depth_weight**depth for depth in range(len(pairs))]
        losses = [weight * divergence(*pair) for weight, pair in zip(weights, pairs, strict=True)]
        loss = torch.stack(losses).sum() / sum(weights)
        update_weights(loss, optimizer_pair, learning_rate * schedule((step + 1) / steps), max_norm=math.inf)
        if step % 20 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}", agreement=" ".join(f"{rate:.2f}" for rate in agreement(pairs)))
    with torch.no_grad():
        held_out = predict(states.select(slice(training_sequences, None)), torch.Generator().manual_seed(11))
    for top_k in (1, 5, 10):
        rates = " ".join(f"{rate:.3f}" for rate in agreement(held_out, top_k))
        print(f"target's most likely token among the head's first {top_k:2}, held-out sequences, by depth: {rates}")
    write_folder(output, save)
    minutes, cpu_minutes = (time.perf_counter() - start_s) / 60, (time.process_time() - start_cpu_s) / 60
    print(f"trained in {minutes:.1f} minutes, {cpu_minutes:.1f} CPU minutes")


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Return heads (…, d) rotated by angles (…, d / 2)."""
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def size_fields(config: ModelConfig) -> dict[str, int | float]:
    """Return the sizes that a head has in common with its target, as fields of `config.json`."""
    return {
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.head_size,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rope_base,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": SEQUENCE_TOKENS,
    }


def write_head(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write config.json and the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")


def agreement(pairs: LogitPairs, top_k: int = 1) -> list[float]:
    """Return, for every depth, how often the target's most likely token is among the head's `top_k`."""
    return [
        (logits.topk(top_k).indices == target_logits.argmax(-1, keepdim=True)).any(-1).float().mean().item()
        for logits, target_logits in pairs
    ]
