"""Greedy decoding with a speculation tree on llama.cpp, on nothing but numpy and llama-cpp-python (0.3.36).

It reads the arrays of `treeopt export tree.json --to npz`. Every leaf of the tree is a sequence of one unified cache: the
text belongs to all of them, a node to those of the leaves below it. So one `llama_decode` verifies the whole tree.
"""

import argparse
import ctypes
import os
import sys
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as llama

LOG = llama.llama_log_callback(lambda *_: None)  # kept here, since the library does not


class Model:
    """A GGUF file and a cache for texts of up to `capacity` tokens, tree included, in so many sequences."""

    def __init__(self, path: str, sequences: int, capacity: int) -> None:
        self.model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
        if not self.model or sequences > llama.llama_max_parallel_sequences():
            sys.exit(f"{path}: llama.cpp cannot load it for {sequences} leaves. Is the file whole?")
        options = llama.llama_context_default_params()
        options.n_ctx = options.n_batch = max(capacity, sequences)
        options.n_seq_max, options.kv_unified = sequences, True
        options.n_threads = options.n_threads_batch = len(os.sched_getaffinity(0))
        options.flash_attn_type = 0  # with it, logits depend a little on what else is in the batch
        self.context = llama.llama_init_from_model(self.model, options)
        self.cache = llama.llama_get_memory(self.context)
        self.vocabulary = llama.llama_model_get_vocab(self.model)
        self.sequences, self.length = range(sequences), 0  # the second: tokens of the text that the cache holds

    def feed(self, tokens: list[int], positions: list[int], sequences: list[Any]) -> Any:
        """Return float32 (n, V), the logits after each token; `sequences` holds the ids of each."""
        batch = llama.llama_batch_init(len(tokens), 0, len(self.sequences))
        batch.n_tokens = len(tokens)
        for i, (token, position, ids) in enumerate(zip(tokens, positions, sequences, strict=True)):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, len(ids), 1
            for k, each in enumerate(ids):
                batch.seq_id[i][k] = each
        if llama.llama_decode(self.context, batch) != 0:
            sys.exit(f"llama.cpp did not take {len(tokens)} tokens")
        llama.llama_batch_free(batch)
        shape = len(tokens), llama.llama_vocab_n_tokens(self.vocabulary)
        return np.ctypeslib.as_array(llama.llama_get_logits(self.context), shape).copy()

    def read(self, text: list[int]) -> Any:
        """Feed what the cache does not hold of a text, to all sequences; return the logits after it."""
        places, self.length = range(self.length, len(text)), len(text)
        return self.feed([text[place] for place in places], [*places], [self.sequences] * len(places))

    def keep(self, leaf: int, first: int, count: int) -> None:
        """Keep the first `count` entries from position `first` on in the sequence of a leaf, now of all sequences."""
        for other in self.sequences:
            if other != leaf:
                llama.llama_memory_seq_rm(self.cache, other, first, -1)
                llama.llama_memory_seq_cp(self.cache, leaf, other, first, first + count)
        llama.llama_memory_seq_rm(self.cache, leaf, first + count, -1)
        self.length = first + count


def generate(files: list[str], parents: list[int], prompt: list[int], count: int) -> tuple[list[int], int]:
    """Return `count` tokens after a prompt, and the number of steps; `parents` are those of the tree, -1 for the root."""
    nodes = range(len(parents))
    children = [[child for child in nodes if parents[child] == node] for node in nodes]
    paths = [[0]]  # the nodes from the root to each node
    for node in nodes[1:]:
        paths.append([*paths[parents[node]], node])
    depth = [len(path) - 1 for path in paths]
    paths = [path for node, path in enumerate(paths) if not children[node]]  # to each leaf
    leaves = [[leaf for leaf, path in enumerate(paths) if node in path] for node in nodes]
    levels = [[node for node in nodes if depth[node] == d and children[node]] for d in range(depth[-1])]
    target, draft = (Model(file, len(paths), len(prompt) + count + 2 * len(parents)) for file in files)
    text, steps = list(prompt), 0
    if len(text) > 1:
        target.read(text[:-1])
    while len(text) < len(prompt) + count:
        steps, root = steps + 1, len(text) - 1  # the root is the last token of the text

        # 1. Draft: a node's children are the likeliest tokens after it. Only nodes that have children are read.
        tokens = [text[root]] * len(parents)
        for level in levels:
            if level != [0]:
                places = [root + depth[node] for node in level]
                logits = draft.feed([tokens[node] for node in level], places, [leaves[node] for node in level])
            else:  # the root, and before it whatever of the text the draft model has not read
                logits = draft.read(text)[-1:]
            for node, row in zip(level, logits, strict=True):
                for child, token in zip(children[node], np.argsort(-row, kind="stable").tolist(), strict=False):
                    tokens[child] = token
        # 2. Verify: one pass over the tree gives the target's choice after every node.
        choice = target.feed(tokens, [root + each for each in depth], leaves).argmax(-1).tolist()
        # 3. Accept: follow the child that is the target's choice; its choice after the last one comes for free.
        path = [0]
        while right := [child for child in children[path[-1]] if tokens[child] == choice[path[-1]]]:
            path += right
        text += [choice[node] for node in path]
        # 4. Keep the accepted path. A leaf was never read by the draft model: the next step does it.
        target.keep(leaves[path[-1]][0], root, len(path))
        if levels:
            draft.keep(leaves[path[-1]][0], root, sum(bool(children[node]) for node in path))
    return text[len(prompt) : len(prompt) + count], steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("--target", "--draft", "--tree", "--prompt"):
        parser.add_argument(name, required=True)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    asked = parser.parse_args()
    llama.llama_log_set(LOG, ctypes.c_void_p(0))
    known, given = Model(asked.target, 1, 1).vocabulary, asked.prompt.encode()
    room = (llama.llama_token * (len(given) + 8))()
    prompt = room[: llama.llama_tokenize(known, given, len(given), room, len(room), True, True)]
    trees = [np.load(asked.tree)["parents"].tolist(), [-1]]
    results = [generate([asked.target, asked.draft], tree, prompt, asked.max_new_tokens) for tree in trees]
    (text, steps), (plain, _) = results
    buffer, tokens = ctypes.create_string_buffer(16 * len(text) + 64), (llama.llama_token * len(text))(*text)
    size = llama.llama_detokenize(known, tokens, len(text), buffer, len(buffer), False, True)
    print(asked.prompt + buffer.raw[:size].decode("utf-8", "replace"))
    print(f"{len(text) / steps:.2f} tokens per step; equals plain decoding: {text == plain}", file=sys.stderr)
