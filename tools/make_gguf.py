"""Write a Llama model with a byte vocabulary, such as the bundled target and draft, as a GGUF file.

Run it as `python tools/make_gguf.py treeopt/bundled/target --type f16 -o target.gguf`. It needs the package gguf.
Other models, and other vocabularies, are converted by llama.cpp's own convert_hf_to_gguf.py.

llama.cpp turns neighbouring entries of queries and keys, Hugging Face's layout those half a head apart: their rows
are interleaved.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from treeopt.arrays import Float32
from treeopt.errors import InvalidValueError
from treeopt.files.whole_files import check_writable
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.folder import ModelFolder

TYPES = ("f32", "f16", "q8_0")
BYTES = 256
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def main() -> None:
    """Convert one folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="model folder in Hugging Face layout")
    parser.add_argument("--type", choices=TYPES, default="f16", help="number format of the matrices")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    make_gguf(arguments.folder, arguments.output, arguments.type)


def make_gguf(folder: Path, path: Path, number_format: str) -> None:
    """Write the model of a folder to a file, whole or not at all.

    Raises InvalidValueError for a model that is not of this kind, TreeoptError for a folder or a path that is of no use.
    """
    source = ModelFolder(folder)
    check(source)
    check_writable(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(source, Path(temporary), number_format)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def check(source: ModelFolder) -> None:
    """Refuse what llama.cpp would run as another model."""
    config, tokens = source.config, source.tokenizer.vocabulary
    plain = not config.query_key_value_bias and not config.output_bias and not config.mlp_bias
    if not plain or config.head_norms or config.rope_scaling is not None or config.sliding_window is not None:
        raise InvalidValueError(
            f"{source.path}: expected a Llama model without biases, head norms, windows and scaled positions. "
            "Got another: use llama.cpp's convert_hf_to_gguf.py."
        )
    if sorted(tokens.values()) != list(range(BYTES)) or config.vocabulary != BYTES:
        raise InvalidValueError(
            f"{source.path}: expected a vocabulary of the {BYTES} bytes. Got {len(tokens)} tokens: "
            "use llama.cpp's convert_hf_to_gguf.py."
        )


def write(source: ModelFolder, path: Path, number_format: str) -> None:
    """Write the file."""
    import gguf

    kind = gguf.GGMLQuantizationType[number_format.upper()]
    whole_file = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0"}[number_format]
    with closing(gguf.GGUFWriter(path, "llama")) as writer:
        writer.add_name(source.path.resolve().name)
        writer.add_file_type(gguf.LlamaFileType[whole_file])
        add_sizes(writer, source.config)
        add_tokens(writer, source)
        for name, tensor in tensors(source):
            if tensor.ndim == 1:  # norms stay as they are
                writer.add_tensor(name, tensor)
            else:
                writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def add_sizes(writer: Any, config: ModelConfig) -> None:
    """Add what the architecture is given by."""
    writer.add_vocab_size(config.vocabulary)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.intermediate)
    writer.add_block_count(config.layers)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.key_value_heads)
    writer.add_key_length(config.head_size)
    writer.add_value_length(config.head_size)
    writer.add_rope_dimension_count(config.head_size)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)


def add_tokens(writer: Any, source: ModelFolder) -> None:
    """Add the bytes as tokens of a byte-level BPE."""
    tokens = sorted(source.tokenizer.vocabulary.items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([token for token, _ in tokens])
    writer.add_token_types([1] * len(tokens))  # normal ones
    writer.add_token_merges([f"{tokens[0][0]} {tokens[0][0]}"])  # one is wanted; its result is no token, so it is none
    end = source.config.end_tokens[0] if source.config.end_tokens else 0
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)


def tensors(source: ModelFolder) -> Iterator[tuple[str, Float32]]:
    """Yield each weight under llama.cpp's name."""
    config = source.config
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if not config.tied_head:
        names["lm_head.weight"] = "output.weight"
    for layer in range(config.layers):
        names |= {f"model.layers.{layer}.{a}.weight": f"blk.{layer}.{b}.weight" for a, b in LAYER_NAMES.items()}
    heads = {"attn_q": config.heads, "attn_k": config.key_value_heads}
    for theirs, ours in names.items():
        with safe_open(source.weight_files[theirs], framework="pt") as file:
            tensor: Float32 = file.get_tensor(theirs).float().numpy()
        part = ours.split(".")[-2]
        yield ours, interleaved(tensor, heads[part]) if part in heads else tensor


def interleaved(rows: Float32, heads: int) -> Float32:
    """Return rows (heads * head_size, n) with the two halves of each head interleaved."""
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


if __name__ == "__main__":
    main()
