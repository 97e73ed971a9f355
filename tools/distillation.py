"""Training of a drafter on the outputs of a chat model, for heads and for draft models."""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from teacher_outputs import Batch, TeacherOutput, measure_fastest_dtype, sample_batches, split_held_out
from torch import Tensor, nn
from tqdm import tqdm
from train_target import schedule, update_weights, write_folder

CHATS_PER_STEP = 4
CHECKPOINT_STEPS = 50
EVALUATION_STEPS = 200
MAX_EVALUATION_CHATS = 64
EVALUATION_BATCH = 8

Predictions = list[tuple[Tensor, Tensor, Tensor]]
"""For every draft depth: the drafter's log-probabilities (n, V), the target's most likely tokens (n, TOP_TOKENS) as
indices of the drafter's vocabulary, -1 outside it, and the target's probabilities (n, TOP_TOKENS)."""


def argument_parser(description: str | None, *, learning_rate: float) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of the chat model in Hugging Face layout")
    parser.add_argument("chats", type=Path, help="folder that contains the folder `teacher` of teacher_outputs.py")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the weights")
    parser.add_argument("--start", type=Path, help="folder of trained weights to continue from")
    parser.add_argument(
        "--steps", type=int, default=1200, help="optimizer steps; 0 only evaluates (default: %(default)s)"
    )
    parser.add_argument("--learning-rate", type=float, default=learning_rate, help="maximum (default: %(default)s)")
    return parser


def distillation_loss(predictions: Predictions, depth_weight: float) -> Tensor:
    """Return the mean of -sum p log q over the drafter's vocabulary; each depth weighs `depth_weight` times the previous."""
    losses = []
    for log_probabilities, top_tokens, top_probabilities in predictions:
        at_top_tokens = log_probabilities.gather(-1, top_tokens.clamp(min=0))
        losses.append(-(top_probabilities * at_top_tokens * (top_tokens >= 0)).sum(-1).mean())
    weights = [depth_weight**depth for depth in range(len(losses))]
    return torch.stack([w * loss for w, loss in zip(weights, losses, strict=True)]).sum() / sum(weights)


def top_k_hits(predictions: Predictions, top_k: int = 1) -> list[Tensor]:
    """Return for every depth, bool (n,), whether the drafter's `top_k` tokens contain the target's most likely one."""
    return [
        (log_probabilities.topk(top_k).indices == top_tokens[:, :1]).any(-1)
        for log_probabilities, top_tokens, _ in predictions
    ]


def train(
    drafter: nn.Module,
    predict: Callable[[Batch], Predictions],
    outputs: list[TeacherOutput],
    *,
    checkpoint: Path,
    options: argparse.Namespace,
    depth_weight: float,
    export: Callable[[Path], object],
) -> None:
    """Train a drafter in place, from the checkpoint of an interrupted run with the same options if there is one.

    Args:
        drafter: the module to train.
        predict: the drafter's predictions on a batch.
        outputs: the target's outputs; acceptance on the held-out ones is printed.
        checkpoint: file that exists until the training is complete.
        options: of `argument_parser`.
        depth_weight: weight of a depth's loss over that of the previous depth.
        export: writes the weights to a folder: that of the options, once training is complete.
    """
    train_outputs, held_out = split_held_out(outputs)
    optimizer = torch.optim.AdamW(
        [
            {"params": [weight for weight in drafter.parameters() if weight.ndim >= 2], "weight_decay": 0.05},
            {"params": [weight for weight in drafter.parameters() if weight.ndim < 2], "weight_decay": 0.0},
        ],
        lr=options.learning_rate,
        betas=(0.9, 0.95),
    )
    first_step, steps = 0, options.steps
    training = {name: str(value) for name, value in vars(options).items() if name != "output"}
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        if state["training"] == training:
            drafter.load_state_dict(state["drafter"])
            optimizer.load_state_dict(state["optimizer"])
            first_step = state["step"]
    print(f"step {first_step}: {evaluate(predict, held_out, depth_weight)}")
    if steps == 0:
        return
    dtype = measure_fastest_dtype()
    bar = tqdm(range(first_step, steps), initial=first_step, total=steps, unit="step")
    for step, batch in zip(bar, sample_batches(train_outputs, CHATS_PER_STEP, first_step), strict=False):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            predictions = predict(batch)
        loss = distillation_loss(predictions, depth_weight)
        update_weights(loss, [optimizer], options.learning_rate * schedule((step + 1) / steps))
        if step % 20 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}", accepted=format_rates(top_k_hits(predictions), 2))
        if (step + 1) % CHECKPOINT_STEPS == 0:
            partial = checkpoint.with_suffix(".partial")
            state = {"training": training, "step": step + 1, "drafter": drafter.state_dict()}
            torch.save({**state, "optimizer": optimizer.state_dict()}, partial)
            partial.rename(checkpoint)
        if (step + 1) % EVALUATION_STEPS == 0 or step + 1 == steps:
            tqdm.write(f"step {step + 1}: {evaluate(predict, held_out, depth_weight)}")
    write_folder(options.output, export)
    checkpoint.unlink(missing_ok=True)


@torch.no_grad()
def evaluate(predict: Callable[[Batch], Predictions], held_out: list[TeacherOutput], depth_weight: float) -> str:
    """Return loss and acceptance on held-out chats: those with greedy answers, and all."""
    greedy = [output for output in held_out if not output.temperature]
    return "; ".join(
        f"held-out {title} {evaluate_chats(predict, outputs[:MAX_EVALUATION_CHATS], depth_weight)}"
        for title, outputs in (("temperature 0", greedy), ("all answers", held_out))
        if outputs
    )


def evaluate_chats(predict: Callable[[Batch], Predictions], outputs: list[TeacherOutput], depth_weight: float) -> str:
    """Return loss and acceptance on some chats as text."""
    by_length = sorted(outputs, key=lambda output: len(output.tokens))
    losses, top_1, top_4 = [], [], []
    for start in range(0, len(by_length), EVALUATION_BATCH):
        predictions = predict(Batch.collate(by_length[start : start + EVALUATION_BATCH]))
        losses.append(distillation_loss(predictions, depth_weight))
        top_1.append(top_k_hits(predictions))
        top_4.append(top_k_hits(predictions, 4))
    rates = (format_rates([torch.cat(hits) for hits in zip(*batches, strict=True)], 3) for batches in (top_1, top_4))
    return "({} chats): loss {:.3f}, top-1 acceptance by depth {}, top-4 {}".format(
        len(outputs), torch.stack(losses).mean(), *rates
    )


def format_rates(hits: list[Tensor], digits: int) -> str:
    """Return the rates of hits (n,) at every depth."""
    return " ".join(f"{depth.float().mean():.{digits}f}" for depth in hits)
