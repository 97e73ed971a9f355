"""Perturbed files of every format load as a valid tree or raise a known error, quickly and in little memory."""

import contextlib
import io
import json
import random
import resource
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from tests.support.mutations import mutate
from tests.trees.formats.read_files import write_tree
from treeopt.errors import TreeoptError
from treeopt.trees import TokenTree
from treeopt.trees.formats import parse
from treeopt.trees.formats.paths import paths_from_tree

MUTANTS = 300
TREE = TokenTree([-1, 0, 0, 1, 1, 2, 2])
PATH = Path("mutant")
ODD_VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 6, 7, 8, 1.0, 0.5, 1e308, 2**31, 2**63, 10**40, "", "0", "7", "size", "a\nb"),
    *([], [0], [[]], [[0]], [[0], [0]], {}, {"0": [1]}, [[[[0]]]], list(range(50))),
]


def perturb_value(rng: random.Random, value: Any) -> Any:
    """Return nested lists and mappings with one entry changed, gone, doubled or in another's place."""
    inside = list(value) if isinstance(value, list | tuple) else list(value.items()) if isinstance(value, dict) else []
    if not inside or rng.random() < 0.15:
        return value + rng.choice([-1, 1]) if type(value) is int and rng.random() < 0.5 else rng.choice(ODD_VALUES)
    at, other = rng.randrange(len(inside)), rng.randrange(len(inside))
    fault = rng.randrange(8)
    if fault == 0:
        del inside[at]
    elif fault == 1:
        inside.insert(other, inside[at])
    elif fault == 2:
        inside[at], inside[other] = inside[other], inside[at]
    elif isinstance(value, dict):
        key, entry = inside[at]
        inside[at] = (str(rng.choice(ODD_VALUES)), entry) if fault == 3 else (key, perturb_value(rng, entry))
    else:
        inside[at] = perturb_value(rng, inside[at])
    return dict(inside) if isinstance(value, dict) else type(value)(inside)


def perturb_json(rng: random.Random, data: bytes) -> bytes:
    return json.dumps(perturb_value(rng, json.loads(data))).encode()


def perturb_config(rng: random.Random, data: bytes) -> bytes:
    """Return a config whose paths are perturbed inside their text."""
    content = json.loads(data)
    paths = eval(content["speculative_token_tree"])
    content["speculative_token_tree"] = str(perturb_value(rng, paths))
    return json.dumps(content).encode()


def perturb_module(rng: random.Random, data: bytes) -> bytes:
    name, _, text = data.decode().partition(" = ")
    return f"{name} = {perturb_value(rng, eval(text))!r}\n".encode()


def perturb_entry(rng: random.Random, data: bytes) -> bytes:
    """Return an archive one of whose entries is perturbed, its checksum right."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(file, "w") as copy:
        items = archive.infolist()
        victim = rng.choice(items[:1] * 3 + items)  # the first is torch's pickle
        for item in items:
            content = archive.read(item)
            copy.writestr(item.filename, mutate(rng, content) if item is victim else content)
    return file.getvalue()


def perturb_growmap(rng: random.Random, data: bytes) -> bytes:
    content = torch.load(io.BytesIO(data), weights_only=True)
    plain = {key: getattr(value, "tolist", lambda v=value: v)() for key, value in content.items()}
    perturbed, file = perturb_value(rng, plain), io.BytesIO()
    for key in ("mask", "depth"):
        with contextlib.suppress(KeyError, TypeError, ValueError, RuntimeError, OverflowError, IndexError):
            perturbed[key] = torch.tensor(
                perturbed[key], dtype=rng.choice([torch.int64] * 8 + [torch.int32, torch.float32])
            )
    torch.save(perturbed, file, _use_new_zipfile_serialization=rng.random() < 0.7)
    return file.getvalue()


def perturb_arrays(rng: random.Random, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays with one changed in a value, its shape or its kind, renamed, or gone."""
    name, fault = rng.choice([*arrays]), rng.randrange(6)
    array = arrays[name].copy()
    if fault < 2:
        array.flat[rng.randrange(array.size)] = np.array(rng.choice([-1, 0, 1, 2, 6, 7, 100])).astype(array.dtype)
    changed = {
        2: array.astype(rng.choice([np.int64, np.uint8, np.float32, np.bool_])),
        3: array[: rng.randrange(len(array) + 1)],
        4: array.reshape(-1) if array.ndim == 2 else array.reshape(1, -1),
    }.get(fault, array)
    others = {key: value for key, value in arrays.items() if key != name}
    return others if fault == 5 else others | {rng.choice([name] * 9 + ["format", "x"]): changed}


def perturb_npz(rng: random.Random, data: bytes) -> bytes:
    file = io.BytesIO()
    np.savez(file, **perturb_arrays(rng, dict(np.load(io.BytesIO(data)))))
    return file.getvalue()


def perturb_safetensors(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.5:
        return safetensors.numpy.save(perturb_arrays(rng, safetensors.numpy.load(data)))
    size = int.from_bytes(data[:8], "little")
    header = perturb_json(rng, data[8 : 8 + size])
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


Perturbation = Callable[[random.Random, bytes], bytes]


def legacy(data: bytes) -> bytes:
    file = io.BytesIO()
    torch.save(torch.load(io.BytesIO(data), weights_only=True), file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def originals() -> dict[str, tuple[list[bytes], list[Perturbation]]]:
    """Return, for every format, good files and the perturbations of each."""

    def written(name: str, suffix: str = ".json") -> bytes:
        return write_tree(name, TREE, suffix=suffix)

    paths = str(paths_from_tree(TREE))
    config = json.dumps({"num_speculative_tokens": TREE.nodes - 1, "speculative_token_tree": paths}).encode()
    return {
        "sequoia": ([written("sequoia")], [mutate, perturb_entry, perturb_growmap]),
        "sequoia, legacy": ([legacy(written("sequoia"))], [mutate]),
        "umbrella": ([written("umbrella")], [mutate, perturb_json]),
        "medusa": ([written("medusa"), b'{"choices": {"a": [[0], [1], [0, 0]], "b": [[0]]}}'], [mutate, perturb_json]),
        "medusa, Python": ([written("medusa", ".py")], [mutate, perturb_module]),
        "nxdi": ([written("nxdi")], [mutate, perturb_json]),
        "npz": ([written("npz")], [mutate, perturb_entry, perturb_npz]),
        "safetensors": ([written("safetensors")], [mutate, perturb_safetensors]),
        "vllm-tree": ([config], [mutate, perturb_json, perturb_config]),
        "vllm-tree, bare": ([paths.encode()], [mutate]),
    }  # fmt: skip


@pytest.mark.parametrize("name", originals())
@pytest.mark.filterwarnings("ignore::treeopt.errors.TreeoptWarning")
def test_perturbed_files_load_or_raise_a_known_error(name):
    files, ways = originals()[name]
    rng, slowest_s, read, reasons = random.Random(f"seed 1 {name}"), 0.0, 0, []
    most_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(MUTANTS):
        data = rng.choice(ways)(rng, rng.choice(files))
        start_s = time.process_time()
        try:
            trees = parse(PATH, data)
        except TreeoptError as error:
            reasons.append(str(error))
        else:
            read += 1
            assert len(trees) > 0
            assert all(TokenTree(item.tree.parents.tolist()) == item.tree for item in trees.values())
        slowest_s = max(slowest_s, time.process_time() - start_s)
    grown_bytes = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most_before)
    assert slowest_s < 1
    assert grown_bytes < 200_000_000
    assert read > 0
    assert len(reasons) == MUTANTS - read > MUTANTS / 2
    assert max(map(len, reasons)) < 500
    assert not any("\n" in reason for reason in reasons)
