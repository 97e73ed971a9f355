"""Greedy decoding with a speculation tree, on nothing but torch and transformers: a decoder to port from.

It needs only `parents` of a tree file (docs/reference/tree-file.md), and its output equals that of `model.generate`. A step
has four parts: the draft model proposes the tree level by level, the target verifies the tree in one pass, the longest
path of correct proposals is accepted, and both caches keep only the entries of this path.
"""

import argparse
import json
import sys
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

Model = Any  # the types of transformers reject its own models and caches
Cache = Any


def load_parents(path: str) -> list[int]:
    """Return the parent of every node; node 0 is the root, the last accepted token, and its parent is -1."""
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    if (content["format"], content["version"]) != ("treeopt-tree", 1):
        raise ValueError(f"{path}: expected version 1 of treeopt-tree")
    if "drafter" in content:
        raise ValueError(f"{path}: expected a tree for a draft model. Got one for {content['drafter']['name']}")
    parents: list[int] = content["parents"]
    return parents


def ancestor_mask(parents: Sequence[int]) -> Tensor:
    """Return bool (n, n): row i marks node i and its ancestors, the tokens of the tree that node i attends to."""
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node in range(1, len(parents)):
        mask[node] |= mask[parents[node]]
    return mask


def forward(model: Model, cache: Cache, tokens: list[int], positions: list[int], tree_mask: Tensor) -> Tensor:
    """Return logits (n, vocabulary) after n nodes, and add their keys and values to the cache.

    tree_mask, bool (n, m), marks which of the last m entries each node attends to; every node attends to all earlier ones.
    """
    length = cache.get_seq_length() + len(tokens) - tree_mask.shape[1]
    mask = torch.zeros(1, 1, len(tokens), length + tree_mask.shape[1], dtype=model.dtype)
    mask[..., length:].masked_fill_(~tree_mask, torch.finfo(model.dtype).min)
    logits: Tensor = model(
        torch.tensor([tokens]), attention_mask=mask, position_ids=torch.tensor([positions]), past_key_values=cache
    ).logits
    return logits[0]


def keep(cache: Cache, length: int, offsets: Sequence[int]) -> None:
    """Keep the first `length` entries of a cache, followed by those at `length + offset`; drop all others."""
    entries = torch.tensor([*range(length), *(length + offset for offset in offsets)])
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, entries], layer.values[:, :, entries]


def generate(
    target: Model,
    draft: Model,
    parents: Sequence[int],
    prompt: Sequence[int],
    max_new_tokens: int,
    end_tokens: Collection[int],
) -> tuple[list[int], int]:
    """Return the prompt with at most `max_new_tokens` more tokens, and the number of steps."""
    mask, nodes = ancestor_mask(parents), range(len(parents))
    depth = (mask.sum(1) - 1).tolist()
    children = [[child for child in nodes if parents[child] == node] for node in nodes]
    levels = [[node for node in nodes if depth[node] == d and children[node]] for d in range(depth[-1])]
    sequence, max_tokens, steps = list(prompt), len(prompt) + max_new_tokens, 0
    target_cache, draft_cache = DynamicCache(), DynamicCache()
    if len(sequence) > 1:
        target(torch.tensor([sequence[:-1]]), past_key_values=target_cache)
    while len(sequence) < max_tokens:
        steps += 1
        root = len(sequence) - 1  # the root's position, and the number of entries in the target's cache

        # 1. Draft: a node's children are the most likely tokens after it. Only nodes with children are fed.
        tokens = [sequence[root]] * len(parents)
        fed: list[int] = []
        for level in levels:
            if level == [0]:  # the root, after all accepted tokens that the draft model has not read
                unread = torch.tensor([sequence[draft_cache.get_seq_length() :]])
                logits = draft(unread, past_key_values=draft_cache).logits[0, -1:]
            else:
                fed += level
                proposals, positions = [tokens[node] for node in level], [root + depth[node] for node in level]
                logits = forward(draft, draft_cache, proposals, positions, mask[level][:, fed])
            for node, row in zip(level, logits, strict=True):
                for child, token in zip(children[node], row.topk(len(children[node])).indices.tolist(), strict=True):
                    tokens[child] = token

        # 2. Verify: one pass over the tree gives the target's choice after every node.
        choice = forward(target, target_cache, tokens, [root + d for d in depth], mask).argmax(-1).tolist()

        # 3. Accept: follow the child that is the target's choice. The choice after the last one is the bonus token.
        path = [0]
        while accepted := [child for child in children[path[-1]] if tokens[child] == choice[path[-1]]]:
            path += accepted
        for node in path:
            sequence.append(choice[node])
            if choice[node] in end_tokens or len(sequence) == max_tokens:
                return sequence, steps

        # 4. Keep the entries of the accepted path. The draft model reads an accepted leaf in the next step.
        keep(target_cache, root, path)
        keep(draft_cache, root + 1, [fed.index(node) for node in path[1:] if children[node]])
    return sequence, steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("--target", "--draft", "--tree", "--prompt"):
        parser.add_argument(name, required=True)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--plain", action="store_true", help="use model.generate instead")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    load: Model = AutoModelForCausalLM.from_pretrained
    target, draft = (load(folder, dtype=torch.float32) for folder in (options.target, options.draft))
    prompt = tokenizer(options.prompt)["input_ids"]
    if options.plain:
        inputs = torch.tensor([prompt])
        sequence = target.generate(inputs, do_sample=False, max_new_tokens=options.max_new_tokens)[0].tolist()
        steps = len(sequence) - len(prompt)
    else:
        end = target.generation_config.eos_token_id
        ends = end if isinstance(end, list) else [end]
        with torch.inference_mode():
            sequence, steps = generate(target, draft, load_parents(options.tree), prompt, options.max_new_tokens, ends)
    print(tokenizer.decode(sequence))
    print(f"{(len(sequence) - len(prompt)) / max(steps, 1):.2f} tokens per step", file=sys.stderr)
