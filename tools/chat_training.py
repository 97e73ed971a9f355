"""The training of a drafter on a chat model's chats: what it shares whether the drafter is a head or a model."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from chat_lessons import Batch, Lesson, batches, split_lessons
from torch import Tensor, nn
from tqdm import tqdm
from train_target import schedule

SAVE_EVERY = 50
REPORT_EVERY = 200
HELD_OUT_CHATS = 64
CHATS_PER_PASS = 8

Guesses = list[tuple[Tensor, Tensor, Tensor]]
"""For every place after the first: log-probabilities (n, V), the target's likeliest tokens (n, KEPT) as the drafter
numbers them, -1 for one it does not know, and their probabilities (n, KEPT)."""


def divergence(guesses: Guesses, weight: float) -> Tensor:
    """Return the mean of -sum p log q over what the drafter knows; each place weighs `weight` times the one before."""
    losses = []
    for log_shares, tokens, shares in guesses:
        found = log_shares.gather(-1, tokens.clamp(min=0))
        losses.append(-(shares * found * (tokens >= 0)).sum(-1).mean())
    weights = [weight**place for place in range(len(losses))]
    return torch.stack([w * loss for w, loss in zip(weights, losses, strict=True)]).sum() / sum(weights)


def accepted(guesses: Guesses, most: int = 1) -> list[Tensor]:
    """Return, for every place, bool (n,): whether the target's likeliest token is among the first `most` guesses."""
    return [(log_shares.topk(most).indices == tokens[:, :1]).any(-1) for log_shares, tokens, _ in guesses]


def fastest_type() -> torch.dtype:
    """Return the faster of float32 and bfloat16 in a product like those of the training, and print both times."""
    seconds = {}
    for kind in (torch.float32, torch.bfloat16):
        a, b = torch.ones(1024, 576, dtype=kind), torch.ones(576, 1536, dtype=kind)
        a @ b
        start_s = time.perf_counter()
        for _ in range(5):
            a @ b
        seconds[kind] = (time.perf_counter() - start_s) / 5
    print(", ".join(f"{str(kind).removeprefix('torch.')} {1e3 * s:.1f} ms" for kind, s in seconds.items()), "a product")
    return min(seconds, key=seconds.__getitem__)


def fit(
    drafter: nn.Module,
    guess: Callable[[Batch], Guesses],
    lessons: list[Lesson],
    *,
    checkpoint: Path,
    steps: int,
    chats: int,
    rate: float,
    place_weight: float,
    export: Callable[[], object],
) -> None:
    """Train a drafter in place, and go on where an earlier run of as many steps stopped.

    Args:
        drafter: what is trained.
        guess: what it says on chats.
        lessons: all of them, those held out included, on which acceptance is printed.
        checkpoint: file of the state that a stopped run goes on from.
        steps: of the optimizer.
        chats: read at each step.
        rate: of learning, at its highest.
        place_weight: of a place's loss beside that of the one before.
        export: writes the drafter as it is; called at every report and at the end.
    """
    kind = fastest_type()
    learnt, held_out = split_lessons(lessons)
    optimizer = torch.optim.AdamW(
        [
            {"params": [weight for weight in drafter.parameters() if weight.ndim >= 2], "weight_decay": 0.05},
            {"params": [weight for weight in drafter.parameters() if weight.ndim < 2], "weight_decay": 0.0},
        ],
        lr=rate,
        betas=(0.9, 0.95),
    )
    first = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        if state["steps"] == steps:
            drafter.load_state_dict(state["drafter"])
            optimizer.load_state_dict(state["optimizer"])
            first = state["step"]
    bar = tqdm(range(first, steps), initial=first, total=steps, unit="step")
    for step, batch in zip(bar, batches(learnt, chats, first), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rate * schedule((step + 1) / steps)
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
            guesses = guess(batch)
        loss = divergence(guesses, place_weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            shares = " ".join(f"{each.float().mean():.2f}" for each in accepted(guesses))
            bar.set_postfix(loss=f"{loss.item():.3f}", accepted=shares)
        if (step + 1) % SAVE_EVERY == 0:
            unfinished = checkpoint.with_suffix(".unfinished")
            state = {"steps": steps, "step": step + 1, "drafter": drafter.state_dict()}
            torch.save({**state, "optimizer": optimizer.state_dict()}, unfinished)
            unfinished.rename(checkpoint)
        if (step + 1) % REPORT_EVERY == 0 or step + 1 == steps:
            tqdm.write(f"step {step + 1}: {report(guess, held_out, place_weight)}")
            export()


@torch.no_grad()
def report(guess: Callable[[Batch], Guesses], held_out: list[Lesson], place_weight: float) -> str:
    """Return loss and acceptance on chats that nothing was learnt from: of answers drawn at temperature 0, and of all."""
    parts = []
    for title, lessons in (
        ("temperature 0", [lesson for lesson in held_out if not lesson.temperature]),
        ("all answers", held_out),
    ):
        chosen = sorted(lessons[:HELD_OUT_CHATS], key=lambda lesson: len(lesson.tokens))
        losses, first, four = [], [], []
        for start in range(0, len(chosen), CHATS_PER_PASS):
            guesses = guess(Batch.of(chosen[start : start + CHATS_PER_PASS]))
            losses.append(divergence(guesses, place_weight))
            first.append(accepted(guesses))
            four.append(accepted(guesses, 4))
        shares, among = (
            " ".join(f"{torch.cat(place).float().mean():.3f}" for place in zip(*each, strict=True))
            for each in (first, four)
        )
        parts.append(
            f"held-out {title} ({len(chosen)} chats): loss {torch.stack(losses).mean():.3f}, "
            f"target's likeliest token first {shares}, among four {among}"
        )
    return "; ".join(parts)
