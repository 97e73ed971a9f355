"""Greedy decoding with a speculation tree, on nothing but torch and transformers: a decoder to port from.

It needs `parents` of a tree file alone (docs/reference/tree-file.md) and gives the text of `model.generate`. A step has four
parts: the draft model proposals the tree level by level, the target reads all of it in one pass, the longest path of
right proposals is accepted, and both caches keep the entries of this path alone.
"""

import argparse
import json
import sys
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

Model = Any  # transformers' own types refuse their own models and caches
Cache = Any


def load_parents(path: str) -> list[int]:
    """Return the parent of every node; node 0 is the root, the last token of the text, and its parent is -1."""
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    if (content["format"], content["version"]) != ("treeopt-tree", 1):
        raise ValueError(f"{path}: expected version 1 of treeopt-tree")
    if "drafter" in content:
        raise ValueError(f"{path}: expected a tree for a draft model. Got one for {content['drafter']['name']}")
    parents: list[int] = content["parents"]
    return parents


def ancestor_mask(parents: Sequence[int]) -> Tensor:
    """Return bool (n, n): row i marks node i and its ancestors, the tree tokens that node i may see."""
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node in range(1, len(parents)):
        mask[node] |= mask[parents[node]]
    return mask


def read(model: Model, cache: Cache, tokens: list[int], positions: list[int], seen: Tensor) -> Tensor:
    """Return logits (n, vocabulary) after n nodes, and add their keys and values to the cache.

    seen, bool (n, m), says which of the last m entries each node sees; earlier ones, the text, are seen by all.
    """
    text = cache.get_seq_length() + len(tokens) - seen.shape[1]
    mask = torch.zeros(1, 1, len(tokens), text + seen.shape[1], dtype=model.dtype)
    mask[..., text:].masked_fill_(~seen, torch.finfo(model.dtype).min)
    places = torch.tensor([positions])
    logits: Tensor = model(
        torch.tensor([tokens]), attention_mask=mask, position_ids=places, past_key_values=cache
    ).logits
    return logits[0]


def keep(cache: Cache, length: int, offsets: Sequence[int]) -> None:
    """Keep the first `length` entries of a cache, and behind them those that stand at these offsets from there."""
    kept = torch.tensor([*range(length), *(length + offset for offset in offsets)])
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, kept], layer.values[:, :, kept]


def generate(
    target: Model,
    draft: Model,
    parents: Sequence[int],
    prompt: Sequence[int],
    max_new_tokens: int,
    end_tokens: Collection[int],
) -> tuple[list[int], int]:
    """Return the text, a list of tokens, with at most `max_new_tokens` more, and the number of steps it took."""
    mask, nodes = ancestor_mask(parents), range(len(parents))
    depth = (mask.sum(1) - 1).tolist()
    children = [[child for child in nodes if parents[child] == node] for node in nodes]
    levels = [[node for node in nodes if depth[node] == d and children[node]] for d in range(depth[-1])]
    text, longest, steps = list(prompt), len(prompt) + max_new_tokens, 0
    target_cache, draft_cache = DynamicCache(), DynamicCache()
    if len(text) > 1:
        target(torch.tensor([text[:-1]]), past_key_values=target_cache)
    while len(text) < longest:
        steps += 1
        root = len(text) - 1  # the root's position in the text, and how many entries the target's cache holds

        # 1. Draft: a node's children are the likeliest tokens after it. Only nodes that have children are read.
        tokens = [text[root]] * len(parents)
        fed: list[int] = []
        for level in levels:
            if level == [0]:  # the root, and before it whatever of the text the draft has not read
                unread = torch.tensor([text[draft_cache.get_seq_length() :]])
                logits = draft(unread, past_key_values=draft_cache).logits[0, -1:]
            else:
                fed += level
                proposals, positions = [tokens[node] for node in level], [root + depth[node] for node in level]
                logits = read(draft, draft_cache, proposals, positions, mask[level][:, fed])
            for node, row in zip(level, logits, strict=True):
                for child, token in zip(children[node], row.topk(len(children[node])).indices.tolist(), strict=True):
                    tokens[child] = token

        # 2. Verify: one pass over the tree gives the target's choice after every node.
        choice = read(target, target_cache, tokens, [root + d for d in depth], mask).argmax(-1).tolist()

        # 3. Accept: follow the child that is the target's choice; its choice after the last one comes for free.
        path = [0]
        while right := [child for child in children[path[-1]] if tokens[child] == choice[path[-1]]]:
            path += right
        for node in path:
            text.append(choice[node])
            if choice[node] in end_tokens or len(text) == longest:
                return text, steps

        # 4. Keep the entries of the accepted path. A leaf was never read by the draft: the next step does it.
        keep(target_cache, root, path)
        keep(draft_cache, root + 1, [fed.index(node) for node in path[1:] if children[node]])
    return text, steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("--target", "--draft", "--tree", "--prompt"):
        parser.add_argument(name, required=True)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--plain", action="store_true", help="use model.generate instead")
    asked = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(asked.target)
    load: Model = AutoModelForCausalLM.from_pretrained
    target, draft = (load(folder, dtype=torch.float32) for folder in (asked.target, asked.draft))
    prompt = tokenizer(asked.prompt)["input_ids"]
    if asked.plain:
        text = target.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=asked.max_new_tokens)[0].tolist()
        steps = len(text) - len(prompt)
    else:
        end = target.generation_config.eos_token_id
        ends = end if isinstance(end, list) else [end]
        with torch.inference_mode():
            text, steps = generate(target, draft, load_parents(asked.tree), prompt, asked.max_new_tokens, ends)
    print(tokenizer.decode(text))
    print(f"{(len(text) - len(prompt)) / max(steps, 1):.2f} tokens per step", file=sys.stderr)
