"""Train the EAGLE-3 head of the bundled target by training-time test (Li et al., 2025, section 3).

    OMP_NUM_THREADS=2 python tools/train_eagle.py --target treeopt/bundled/target --output treeopt/bundled/eagle

The target stays as it is.  The head learns from texts that the target wrote itself.  It is unrolled over the next tokens
of a text, each time on its own output of the time before, and every time its distribution is pulled to what the target
says there.  It is saved as SafeAILab's trainer saves heads, in safetensors.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import corpus
import head_training
import torch
from llama import load_llama
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm
from train_draft import written_texts

from treeopt.runtime import Transformer, load_model
from treeopt.runtime.drafters.eagle.config import TAP_IDS, default_boundaries
from treeopt.runtime.models.model import Wants

UNROLLED = 5
STEP_WEIGHT = 0.8
"""Of a step's loss beside the one before."""
HELD_OUT_TEXTS = 32
TEXT_TOKENS = 512
INNER = 256
"""Of the MLP: less than the target's, because a draft pass must cost little."""
STORE = Path("build/heads")
H = TypeVar("H", bound=nn.Module)


class Lessons(NamedTuple):
    """Texts with what the target thinks at each of their tokens."""

    taps: Tensor
    """float16 (N, T, 3 hidden): the residual stream at the default boundaries."""
    last: Tensor
    """float16 (N, T, hidden): after the final norm."""
    tokens: Tensor
    """int64 (N, T)."""

    def of(self, texts: Tensor | slice) -> "Lessons":
        """Return some texts, in float32."""
        return Lessons(self.taps[texts].float(), self.last[texts].float(), self.tokens[texts])


def prepared(folder: Path, target: Transformer, texts: int, corpus_windows: int) -> Lessons:
    """Return the lessons, made once and kept: texts of the target shuffled with windows of the corpus.

    The last are windows that nothing is trained on, neither here nor with fewer windows.
    """
    store = STORE / f"eagle_lessons_{texts}_{corpus_windows}.pt"
    if not store.is_file():
        together = torch.cat([_written(folder, texts), _windows(corpus_windows)])
        order = torch.randperm(len(together) - HELD_OUT_TEXTS, generator=torch.Generator().manual_seed(7))
        _keep(tuple(lessons(target, torch.cat([together[order], together[-HELD_OUT_TEXTS:]]))), store)
    return Lessons(*torch.load(store, weights_only=True))


def _written(folder: Path, texts: int) -> Tensor:
    """Return texts of the target, made once and kept, because they cost most."""
    store = STORE / f"eagle_texts_{texts}.pt"
    if not store.is_file():
        _keep(written_texts(load_llama(folder), texts, TEXT_TOKENS, torch.Generator().manual_seed(5)), store)
    written: Tensor = torch.load(store, weights_only=True)
    return written


def _windows(count: int) -> Tensor:
    stream = corpus.windows(corpus.byte_stream(held_out=False), TEXT_TOKENS, torch.Generator().manual_seed(6))
    return torch.stack([next(stream)[:-1] for _ in range(count)])


def _keep(content: object, store: Path) -> None:
    store.parent.mkdir(parents=True, exist_ok=True)
    unfinished = store.with_suffix(f".{os.getpid()}")
    torch.save(content, unfinished)
    unfinished.rename(store)


def lessons(target: Transformer, texts: Tensor) -> Lessons:
    """Return texts, int64 (N, T), with the target's states."""
    wants = Wants(boundaries=default_boundaries(len(target.weights.layers)), last=True)
    hidden, (count, tokens) = target.config.hidden, texts.shape
    taps = torch.empty((count, tokens, len(wants.boundaries) * hidden), dtype=torch.float16)
    last = torch.empty((count, tokens, hidden), dtype=torch.float16)
    for start in tqdm(range(0, count, 8), desc="lessons"):
        states = target.states(texts[start : start + 8], wants)
        assert states.last is not None  # it was wanted
        taps[start : start + 8] = torch.cat(states.boundaries, -1)
        last[start : start + 8] = states.last
    return Lessons(taps, last, texts)


class LearningHead(nn.Module):
    """What `treeopt.runtime.drafters.eagle` runs, in a form that learns."""

    def __init__(
        self,
        target: Transformer,
        output: Tensor,
        *,
        inner: int = INNER,
        unrolled: int = UNROLLED,
        draft_tokens: Tensor | None = None,
    ) -> None:
        """Initialize the output layer.

        Args:
            target: the model that the head drafts for.
            output: float32 (draft vocabulary, hidden), rows of the target's output layer.
            inner: width of the MLP.
            unrolled: steps of the training-time test.
            draft_tokens: int64 (draft vocabulary,), the token of each row; None if it is the row's own number.
        """
        super().__init__()
        self.inner, self.unrolled_steps, self.draft_tokens = inner, unrolled, draft_tokens
        self.config = config = target.config
        hidden, heads, keys = config.hidden, config.heads * config.head_size, config.key_value_heads * config.head_size
        self.embedding: Tensor
        self.wanted: Tensor
        self.register_buffer("embedding", target.weights.embedding, persistent=False)
        self.register_buffer("wanted", output, persistent=False)
        sizes = {"q": (2 * hidden, heads), "k": (2 * hidden, keys), "v": (2 * hidden, keys), "o": (heads, hidden)}
        sizes |= {"gate": (hidden, inner), "up": (hidden, inner), "down": (inner, hidden), "fc": (3 * hidden, hidden)}
        layers = {name: nn.Linear(*each, bias=False) for name, each in sizes.items()}
        for name in ("o", "down"):
            nn.init.zeros_(layers[name].weight)
        self.layers = nn.ModuleDict(layers)
        self.norms = nn.ParameterDict({name: torch.ones(hidden) for name in ("input", "hidden", "attention", "output")})
        self.output = nn.Parameter(output.clone())
        frequencies = config.rope_base ** -(torch.arange(0, config.head_size, 2) / config.head_size)
        self.angles: Tensor
        self.register_buffer("angles", torch.outer(torch.arange(TEXT_TOKENS), frequencies), persistent=False)

    def normed(self, x: Tensor, name: str) -> Tensor:
        """Return x (…, hidden) normed."""
        return F.rms_norm(x.float(), x.shape[-1:], self.norms[name], self.config.norm_epsilon)

    def turned(self, x: Tensor, first: int) -> Tensor:
        """Return heads (texts, T, heads, d) turned for the positions from `first` on."""
        angles = self.angles[first : first + x.shape[1], None]
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)

    def unrolled(self, found: Lessons) -> list[tuple[Tensor, Tensor]]:
        """Return, for every step, the head's logits and the target's at the same places, each (texts, places, V)."""
        steps = []
        for step, x in enumerate(self.states(found.taps, found.tokens)):
            wanted = found.last[:, step + 1 : x.shape[1] + step + 1] @ self.wanted.T
            steps.append((x @ self.output.T, wanted))
        return steps

    def states(self, taps: Tensor, tokens: Tensor) -> Iterator[Tensor]:
        """Yield the input of the output layer for every step, (texts, places, hidden); place p predicts token p + step + 2.

        Args:
            taps: (texts, T, 3 hidden).
            tokens: int64 (texts, T).
        """
        places = tokens.shape[1] - self.unrolled_steps
        x = self.layers["fc"](taps[:, :places])
        past: list[tuple[Tensor, Tensor]] = []
        for step in range(self.unrolled_steps):
            read_tokens = tokens[:, step + 1 : places + step + 1]
            g = self.normed(x, "hidden")
            read = torch.cat([self.normed(F.embedding(read_tokens, self.embedding), "input"), g], -1)
            y = x + self.attended(read, step, past)
            z = self.normed(y, "attention")
            x = y + self.layers["down"](F.silu(self.layers["gate"](z)) * self.layers["up"](z))
            yield self.normed(x, "output")

    def attended(self, read: Tensor, step: int, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return attention's output; keys and values of this step are put behind those of the steps `past`.

        A place sees the places up to its own as the first step made them, and of later steps its own alone.
        """
        config, (texts, places, _) = self.config, read.shape
        shape = (texts, places, -1, config.head_size)
        query = self.turned(self.layers["q"](read).view(shape), step).transpose(1, 2)
        key = self.turned(self.layers["k"](read).view(shape), step).transpose(1, 2)
        value = self.layers["v"](read).view(shape).transpose(1, 2)
        groups = config.heads // config.key_value_heads
        past.append((key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)))
        (keys, values), *own = past
        before = torch.ones(places, places, dtype=torch.bool).triu(1)
        scores = [(query @ keys.transpose(-1, -2)).masked_fill(before, float("-inf"))]
        scores += [(query * each).sum(-1, keepdim=True) for each, _ in own]
        weights = (torch.cat([each.float() for each in scores], -1) * config.head_size**-0.5).softmax(-1)
        found = weights[..., :places] @ values
        for index, (_, each) in enumerate(own):
            found = found + weights[..., places + index, None] * each
        output: Tensor = self.layers["o"](found.transpose(1, 2).reshape(texts, places, -1))
        return output


NAMES = {
    "layers.fc.weight": "fc.weight",
    "layers.q.weight": "midlayer.self_attn.q_proj.weight",
    "layers.k.weight": "midlayer.self_attn.k_proj.weight",
    "layers.v.weight": "midlayer.self_attn.v_proj.weight",
    "layers.o.weight": "midlayer.self_attn.o_proj.weight",
    "layers.gate.weight": "midlayer.mlp.gate_proj.weight",
    "layers.up.weight": "midlayer.mlp.up_proj.weight",
    "layers.down.weight": "midlayer.mlp.down_proj.weight",
    "norms.input": "midlayer.input_layernorm.weight",
    "norms.hidden": "midlayer.hidden_norm.weight",
    "norms.attention": "midlayer.post_attention_layernorm.weight",
    "norms.output": "norm.weight",
    "output": "lm_head.weight",
}


def save(head: LearningHead, layers: int, folder: Path) -> None:
    """Write the weights in half precision by SafeAILab's names, and what they fit; states are named by their layers."""
    folder.mkdir(parents=True, exist_ok=True)
    config = head.config
    content = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.hidden,
        "intermediate_size": head.inner,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.head_size,
        "num_hidden_layers": 1,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rope_base,
        "vocab_size": config.vocabulary,
        "draft_vocab_size": len(head.output),
        "max_position_embeddings": TEXT_TOKENS,
        "eagle_config": {TAP_IDS: [boundary - 1 for boundary in default_boundaries(layers)]},
    }
    (folder / "config.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    weights = head.state_dict()
    tensors = {new: weights[name].half().contiguous() for name, new in NAMES.items()}
    if head.draft_tokens is not None:
        tensors["d2t"] = head.draft_tokens - torch.arange(len(head.draft_tokens))
    save_file(tensors, folder / "model.safetensors")


def load(head: LearningHead, folder: Path) -> None:
    """Load the weights and the draft vocabulary that `save` wrote."""
    stored = load_file(folder / "model.safetensors")
    head.load_state_dict({name: stored[new].float() for name, new in NAMES.items()})
    if head.draft_tokens is not None:
        head.draft_tokens = stored["d2t"] + torch.arange(len(stored["d2t"]))


def train(
    title: str,
    make: Callable[[Transformer, Tensor], H],
    pairs: Callable[[H, Lessons, torch.Generator], head_training.Pairs],
    save: Callable[[H, int, Path], None],
    load: Callable[[H, Path], None],
    *,
    description: str | None,
    weight: float,
    steps: int,
) -> None:
    """Parse the arguments, train on most of the lessons, report on the others, save.

    Args:
        title: of the progress bar.
        make: from the target and its output layer, float32 (V, hidden), to a head that learns.
        pairs: what the head predicts on some lessons, next to what the target does; draws roots with the generator.
        save: writes a head for a target of so many layers into a folder.
        load: reads what `save` wrote.
        description: of the script.
        weight: of a place's loss over that of the place before.
        steps: by default.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=96)
    parser.add_argument("--corpus-windows", type=int, default=672)
    parser.add_argument("--start", type=Path, help="a head to go on from")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    args = parser.parse_args()
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    target = load_model(args.target)
    lessons = prepared(args.target, target, args.texts, args.corpus_windows)
    lessons_s = time.perf_counter() - start_s
    torch.manual_seed(9)
    head = make(target, load_llama(args.target).lm_head.weight.detach())
    if args.start is not None:
        load(head, args.start)
    kept, layers = len(lessons.tokens) - HELD_OUT_TEXTS, len(target.weights.layers)
    generator = torch.Generator().manual_seed(10)
    head_training.fit(
        head,
        lambda texts: pairs(head, lessons.of(texts), generator),
        kept,
        weight=weight,
        steps=args.steps,
        rate=args.learning_rate,
        title=title,
        save=lambda: save(head, layers, args.output),
    )
    with torch.no_grad():
        held_out = lessons.of(slice(kept, None))
        head_training.report(pairs(head, held_out, torch.Generator().manual_seed(11)), (1, 5, 10))
    save(head, layers, args.output)
    minutes, cpu = (time.perf_counter() - start_s) / 60, (time.process_time() - start_cpu_s) / 60
    print(f"{minutes:.1f} minutes, {lessons_s / 60:.1f} of them for lessons; {cpu:.1f} CPU minutes")


def main() -> None:
    """Train the EAGLE-3 head."""
    train(
        "eagle",
        LearningHead,
        lambda head, lessons, _: head.unrolled(lessons),
        save,
        load,
        description=__doc__,
        weight=STEP_WEIGHT,
        steps=300,
    )


if __name__ == "__main__":
    main()
