"""How heads learn the target's distributions, whatever the heads are like."""

from collections.abc import Callable

import torch
from teacher_outputs import measure_fastest_dtype
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax
from tqdm import tqdm
from train_target import optimizers, schedule

Pairs = list[tuple[Tensor, Tensor]]
"""Logits (…, V) that were given and those of the target that were wanted, place by place."""
TEXTS_PER_STEP = 4
MUON_TO_ADAM = 5.0
"""Learning rate of Muon over that of AdamW, which takes its place where bfloat16 is slow."""


def fit(
    heads: nn.Module,
    proposals: Callable[[Tensor], Pairs],
    texts: int,
    *,
    weight: float,
    steps: int,
    rate: float,
    title: str,
    save: Callable[[], object] | None = None,
) -> None:
    """Train heads in place.

    Args:
        heads: what is trained.
        proposals: from texts, int64 (m,), to what is given and wanted on them.
        texts: how many there are.
        weight: of a place's loss beside that of the one before.
        steps: of the optimizer, each on a few texts.
        rate: of learning.
        title: of the bar.
        save: called after every 100 steps, for a training that may be stopped.
    """
    dtype = measure_fastest_dtype()
    pair: list[torch.optim.Optimizer] = list(optimizers(heads, rate))
    if dtype != torch.bfloat16:  # Muon orthogonalises in bfloat16, which takes seconds without instructions for it
        rate /= MUON_TO_ADAM
        pair = [torch.optim.AdamW(heads.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)]
    generator = torch.Generator().manual_seed(8)
    bar = tqdm(range(steps), desc=title)
    for step in bar:
        for optimizer in pair:
            optimizer.param_groups[0]["lr"] = rate * schedule((step + 1) / steps)
        chosen = torch.randint(texts, (TEXTS_PER_STEP,), generator=generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            pairs = proposals(chosen)
        weights = [weight**place for place in range(len(pairs))]
        loss = torch.stack([w * divergence(*pair) for w, pair in zip(weights, pairs, strict=True)]).sum() / sum(weights)
        loss.backward()
        for optimizer in pair:
            optimizer.step()
            optimizer.zero_grad()
        if step % 20 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}", agreement=" ".join(f"{share:.2f}" for share in agreement(pairs)))
        if save is not None and step % 100 == 99:
            save()


def divergence(given: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean KL(target || head) of logits (…, V)."""
    log_given, log_wanted = (log_softmax(logits.float(), -1).flatten(0, -2) for logits in (given, wanted))
    return kl_div(log_given, log_wanted, log_target=True, reduction="batchmean")


def agreement(pairs: Pairs, most: int = 1) -> list[float]:
    """Return, for every place, how often the target's likeliest token is among so many of the head's own."""
    return [
        (given.topk(most).indices == wanted.argmax(-1, keepdim=True)).any(-1).float().mean().item()
        for given, wanted in pairs
    ]


def report(pairs: Pairs, numbers: tuple[int, ...]) -> None:
    """Print this for several numbers."""
    for most in numbers:
        shares = " ".join(f"{share:.3f}" for share in agreement(pairs, most))
        print(f"target's likeliest token among a head's first {most:2}, on texts not trained on, by place: {shares}")
