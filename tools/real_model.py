"""Write a GGUF file of a Llama model as a folder in Hugging Face layout, which treeopt and transformers run.

    python tools/real_model.py model.gguf -o FOLDER

`make real-model` runs it. It needs the package gguf.

Weights are dequantized and stored in float16: half the size of float32. Rounding to its 11 bits is far below the error
of the quantization; bfloat16 has only 8. Rows of queries and keys go back to Hugging Face's layout, the inverse of
`make_gguf.interleave`.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from make_gguf import LAYER_NAMES
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from treeopt.arrays import Float32
from treeopt.errors import FormatError

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
SPLIT_DIGITS = {"smollm": True, "gpt-2": False}
"""Whether digits are split before byte-pair merges, by llama.cpp's name of the pre-tokenizer."""
CONTROL, USER_DEFINED = 3, 4
"""Token types of GGUF that are matched before the pre-tokenizer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path, help="GGUF file of a Llama model")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    write_folder(args.file, args.output)


def write_folder(path: Path, folder: Path) -> None:
    """Write config, weights and tokenizer of a GGUF file to a folder.

    Raises FormatError for another architecture or tokenizer, before anything is written.
    """
    from gguf import GGUFReader

    reader = GGUFReader(path)
    metadata = Metadata(path, reader)
    config = model_config(metadata, {tensor.name for tensor in reader.tensors})
    names = weight_names(path, config, reader.tensors)
    tokenizer = build_tokenizer(metadata)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", tokenizer_config(metadata))
    write_json(folder / "generation_config.json", {"do_sample": False, **special_ids(metadata)})
    weights = {names[tensor.name]: hf_weight(tensor, config) for tensor in reader.tensors}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", config)


class Metadata:
    """Key-value pairs of a GGUF file."""

    def __init__(self, path: Path, reader: "GGUFReader") -> None:
        self.path, self._fields = path, reader.fields

    def get(self, name: str) -> Any:
        """Return a value, None if the file has none."""
        return self._fields[name].contents() if name in self._fields else None

    def __getitem__(self, name: str) -> Any:
        if name not in self._fields:
            raise FormatError(self.path, name, "expected this key. Convert the model again with a newer llama.cpp.")
        return self.get(name)

    def require(self, name: str, *expected: object) -> Any:
        """Return a value that is one of those expected; raises FormatError for another."""
        value = self[name]
        if value not in expected:
            raise FormatError(self.path, name, f"expected one of {', '.join(map(str, expected))}. Got {value!r}.")
        return value


def model_config(metadata: Metadata, tensors: set[str]) -> dict[str, Any]:
    """Return the content of `config.json`."""
    metadata.require("general.architecture", "llama")
    heads, hidden = metadata["llama.attention.head_count"], metadata["llama.embedding_length"]
    head_size = metadata.require(
        "llama.rope.dimension_count", metadata.get("llama.attention.key_length") or hidden // heads
    )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "hidden_size": hidden,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": head_size,
        "hidden_act": "silu",
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": shortest_decimal(metadata["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": shortest_decimal(metadata["llama.rope.freq_base"]),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in tensors,
        "dtype": "float16",
        **special_ids(metadata),
    }


def shortest_decimal(value: float) -> float:
    """Return the shortest decimal of the same float32: GGUF stores 1e-5 as 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def special_ids(metadata: Metadata) -> dict[str, int]:
    """Return ids of the start, end and padding tokens, as both configurations name them."""
    ids = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    values = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in ids.items()}
    return {name: int(value) for name, value in values.items() if value is not None}


def weight_names(path: Path, config: dict[str, Any], tensors: "list[ReaderTensor]") -> dict[str, str]:
    """Return Hugging Face's name of every tensor; raises FormatError for one that the Llama architecture lacks."""
    names = {f"{gguf_name}.weight": f"{hf_name}.weight" for gguf_name, hf_name in NAMES.items()}
    for layer in range(config["num_hidden_layers"]):
        names |= {f"blk.{layer}.{b}.weight": f"model.layers.{layer}.{a}.weight" for a, b in LAYER_NAMES.items()}
    file_names = {tensor.name for tensor in tensors}
    if unknown := sorted(file_names - set(names)):
        raise FormatError(path, unknown[0], "expected tensors of a Llama model without biases and scaled positions.")
    if missing := sorted(set(names) - file_names - {"output.weight"}):
        raise FormatError(path, missing[0], "expected this tensor. Is the file complete?")
    return names


def hf_weight(tensor: "ReaderTensor", config: dict[str, Any]) -> "np.ndarray[Any, np.dtype[np.float16]]":
    """Return one weight in float16, its rows in Hugging Face's order."""
    from gguf.quants import dequantize

    weight: Float32 = dequantize(tensor.data, tensor.tensor_type)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    part = tensor.name.split(".")[-2]
    return (split_halves(weight, heads[part]) if part in heads else weight).astype(np.float16)


def split_halves(rows: Float32, heads: int) -> Float32:
    """Return rows (heads * head_size, n) with the entries of a rotated pair half a head apart instead of next to each other."""
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))


def build_tokenizer(metadata: Metadata) -> Tokenizer:
    """Return the byte-level BPE of a file; raises FormatError for another tokenizer."""
    metadata.require("tokenizer.ggml.model", "gpt2")
    split_digits = SPLIT_DIGITS[metadata.require("tokenizer.ggml.pre", *SPLIT_DIGITS)]
    if metadata.get("tokenizer.ggml.add_bos_token") or metadata.get("tokenizer.ggml.add_space_prefix"):
        raise FormatError(metadata.path, "tokenizer.ggml", "expected no token or space added at the start of a text.")
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if split_digits else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, bytes_of_words])
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, types, strict=True):
        if kind in (CONTROL, USER_DEFINED):
            added = AddedToken(token, special=kind == CONTROL, normalized=False)
            (tokenizer.add_special_tokens if kind == CONTROL else tokenizer.add_tokens)([added])
    return tokenizer


def tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json`, the chat template included."""
    tokens = metadata["tokenizer.ggml.tokens"]
    special = {name.replace("_id", ""): tokens[index] for name, index in special_ids(metadata).items()}
    template = metadata.get("tokenizer.chat_template")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
        **special,
        **({} if template is None else {"chat_template": template}),
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
