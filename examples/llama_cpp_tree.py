"""Greedy decoding with a speculation tree on llama.cpp, on nothing but numpy and llama-cpp-python (0.3.36).

It reads the arrays of `treeopt export tree.json --to npz`. Every leaf of the tree is a llama.cpp sequence in one unified
cache: the accepted tokens belong to all sequences, a node to the sequences of the leaves below it. So one `llama_decode`
verifies the whole tree.
"""

import argparse
import ctypes
import os
import sys
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as llama

LOG = llama.llama_log_callback(lambda *_: None)  # the library holds no reference to it
THREADS = int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0))))


class Model:
    """A GGUF model and a cache of `capacity` tokens, tree included, for `sequences` sequences."""

    def __init__(self, path: str, sequences: int, capacity: int) -> None:
        self.model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
        if not self.model or sequences > llama.llama_max_parallel_sequences():
            sys.exit(f"{path}: llama.cpp cannot load it for {sequences} leaves. Is the file whole?")
        options = llama.llama_context_default_params()
        options.n_ctx = options.n_batch = max(capacity, sequences)
        options.n_seq_max, options.kv_unified = sequences, True
        options.n_threads = options.n_threads_batch = THREADS
        options.flash_attn_type = 0  # with it, logits depend a little on what else is in the batch
        self.context = llama.llama_init_from_model(self.model, options)
        self.cache = llama.llama_get_memory(self.context)
        self.vocabulary = llama.llama_model_get_vocab(self.model)
        self.sequences = range(sequences)
        self.length = 0  # accepted tokens in the cache

    def feed(self, tokens: list[int], positions: list[int], sequences: list[Any]) -> Any:
        """Return float32 (n, V), the logits after each token; `sequences` has the sequence ids of each token."""
        batch = llama.llama_batch_init(len(tokens), 0, len(self.sequences))
        batch.n_tokens = len(tokens)
        for i, (token, position, ids) in enumerate(zip(tokens, positions, sequences, strict=True)):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, len(ids), 1
            for k, sequence in enumerate(ids):
                batch.seq_id[i][k] = sequence
        if llama.llama_decode(self.context, batch) != 0:
            sys.exit(f"llama.cpp failed to decode {len(tokens)} tokens")
        llama.llama_batch_free(batch)
        shape = len(tokens), llama.llama_vocab_n_tokens(self.vocabulary)
        return np.ctypeslib.as_array(llama.llama_get_logits(self.context), shape).copy()

    def prefill(self, tokens: list[int]) -> Any:
        """Feed the tokens that are not in the cache yet, to all sequences; return their logits."""
        positions, self.length = range(self.length, len(tokens)), len(tokens)
        return self.feed([tokens[i] for i in positions], [*positions], [self.sequences] * len(positions))

    def keep(self, leaf: int, first: int, count: int) -> None:
        """Keep `count` entries from position `first` on of one leaf's sequence, and copy them to all sequences."""
        for other in self.sequences:
            if other != leaf:
                llama.llama_memory_seq_rm(self.cache, other, first, -1)
                llama.llama_memory_seq_cp(self.cache, leaf, other, first, first + count)
        llama.llama_memory_seq_rm(self.cache, leaf, first + count, -1)
        self.length = first + count


def generate(files: list[str], parents: list[int], prompt: list[int], count: int) -> tuple[list[int], int]:
    """Return `count` tokens after a prompt, and the number of steps; `parents` is -1 for the root of the tree."""
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
    sequence, steps = list(prompt), 0
    if len(sequence) > 1:
        target.prefill(sequence[:-1])
    while len(sequence) < len(prompt) + count:
        steps, root = steps + 1, len(sequence) - 1  # the root is the last accepted token

        # 1. Draft: a node's children are the most likely tokens after it. Only nodes with children are fed.
        tokens = [sequence[root]] * len(parents)
        for level in levels:
            if level != [0]:
                positions = [root + depth[node] for node in level]
                logits = draft.feed([tokens[node] for node in level], positions, [leaves[node] for node in level])
            else:  # the root, after all accepted tokens that the draft model has not read
                logits = draft.prefill(sequence)[-1:]
            for node, row in zip(level, logits, strict=True):
                for child, token in zip(children[node], np.argsort(-row, kind="stable").tolist(), strict=False):
                    tokens[child] = token
        # 2. Verify: one pass over the tree gives the target's choice after every node.
        choice = target.feed(tokens, [root + level for level in depth], leaves).argmax(-1).tolist()
        # 3. Accept: follow the child that is the target's choice. The choice after the last one is the bonus token.
        path = [0]
        while accepted := [child for child in children[path[-1]] if tokens[child] == choice[path[-1]]]:
            path += accepted
        sequence += [choice[node] for node in path]
        # 4. Keep the accepted path. The draft model reads an accepted leaf in the next step.
        target.keep(leaves[path[-1]][0], root, len(path))
        if levels:
            draft.keep(leaves[path[-1]][0], root, sum(bool(children[node]) for node in path))
    return sequence[len(prompt) : len(prompt) + count], steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("--target", "--draft", "--tree", "--prompt"):
        parser.add_argument(name, required=True)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()
    llama.llama_log_set(LOG, ctypes.c_void_p(0))
    vocabulary, text = Model(options.target, 1, 1).vocabulary, options.prompt.encode()
    buffer = (llama.llama_token * (len(text) + 8))()
    prompt = buffer[: llama.llama_tokenize(vocabulary, text, len(text), buffer, len(buffer), True, True)]
    files, count = [options.target, options.draft], options.max_new_tokens
    tree = np.load(options.tree)["parents"].tolist()
    (completion, steps), (plain, _) = generate(files, tree, prompt, count), generate(files, [-1], prompt, count)
    tokens, output = (llama.llama_token * count)(*completion), ctypes.create_string_buffer(16 * count + 64)
    size = llama.llama_detokenize(vocabulary, tokens, count, output, len(output), False, True)
    print(options.prompt + output.raw[:size].decode("utf-8", "replace"))
    print(f"{count / steps:.2f} tokens per step; equals plain decoding: {completion == plain}", file=sys.stderr)
