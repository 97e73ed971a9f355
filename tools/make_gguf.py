"""Write a Llama model as a GGUF file. It needs the package gguf.

    python tools/make_gguf.py treeopt/bundled/target --type f16 -o target.gguf
    python tools/make_gguf.py examples/smollm2/draft --tokenizer build/real-model.gguf -o build/real-draft.gguf

Without `--tokenizer` the vocabulary must be the 256 bytes, like the bundled pair's. `--tokenizer` copies the tokenizer of a
GGUF file with the same tokens: the target's, for a draft model. Use llama.cpp's convert_hf_to_gguf.py for other models.

llama.cpp rotates neighbouring entries of queries and keys, Hugging Face entries half a head apart, so these rows are
interleaved.
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
from treeopt.files.atomic_files import check_writable
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.folder import ModelFolder

Field = tuple[str, Any, Any, Any]
"""A key-value pair of a GGUF file: key, value, its type, and the type of its elements if it is an array."""
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="model folder in Hugging Face layout")
    parser.add_argument("--type", choices=TYPES, default="f16", help="dtype of the matrices")
    parser.add_argument("--tokenizer", type=Path, help="GGUF file with the same tokens whose tokenizer is copied")
    parser.add_argument("-o", "--output", type=Path, required=True, help="GGUF file to write")
    args = parser.parse_args()
    make_gguf(args.folder, args.output, args.type, tokenizer=args.tokenizer)


def make_gguf(folder: Path, path: Path, dtype: str, *, tokenizer: Path | None = None) -> None:
    """Write the model of a folder to a file, whole or not at all.

    Args:
        folder: model in Hugging Face layout.
        path: file to write.
        dtype: one of TYPES.
        tokenizer: GGUF file whose tokenizer is copied; by default the vocabulary must be the 256 bytes.

    Raises InvalidValueError for another architecture or vocabulary, TreeoptError for an unusable folder or path.
    """
    source = ModelFolder(folder)
    check_architecture(source)
    fields = byte_tokenizer(source) if tokenizer is None else copy_tokenizer(source, tokenizer)
    check_writable(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(source, Path(temporary), dtype, fields)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def check_architecture(source: ModelFolder) -> None:
    """Refuse models that llama.cpp would run differently."""
    config = source.config
    plain = not config.query_key_value_bias and not config.output_bias and not config.mlp_bias
    if not plain or config.head_norms or config.rope_scaling is not None or config.sliding_window is not None:
        raise InvalidValueError(
            f"{source.path}: expected a Llama model without biases, head norms, windows and scaled positions. "
            "Got another: use llama.cpp's convert_hf_to_gguf.py."
        )


def write(source: ModelFolder, path: Path, dtype: str, tokenizer: list[Field]) -> None:
    import gguf

    kind = gguf.GGMLQuantizationType[dtype.upper()]
    whole_file = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0"}[dtype]
    with closing(gguf.GGUFWriter(path, "llama")) as writer:
        writer.add_name(source.path.resolve().name)
        writer.add_file_type(gguf.LlamaFileType[whole_file])
        add_sizes(writer, source.config)
        for field in tokenizer:
            writer.add_key_value(*field)
        for name, tensor in tensors(source):
            if tensor.ndim == 1:  # norms stay in float32
                writer.add_tensor(name, tensor)
            else:
                writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def add_sizes(writer: Any, config: ModelConfig) -> None:
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


def byte_tokenizer(source: ModelFolder) -> list[Field]:
    """Return the bytes as tokens of a byte-level BPE; InvalidValueError for another vocabulary."""
    from gguf import GGUFValueType as Kind

    numbers = source.tokenizer.vocabulary
    if sorted(numbers.values()) != list(range(BYTES)) or source.config.vocabulary != BYTES:
        raise InvalidValueError(
            f"{source.path}: expected a vocabulary of the {BYTES} bytes. Got {len(numbers)} tokens: add --tokenizer with a "
            "GGUF file of the same tokens, or use llama.cpp's convert_hf_to_gguf.py."
        )
    tokens = sorted(numbers, key=numbers.__getitem__)
    end = source.config.end_tokens[0] if source.config.end_tokens else 0
    merges = [
        f"{tokens[0]} {tokens[0]}"
    ]  # llama.cpp requires a merge; this one has no effect, because its result is no token
    return [
        ("tokenizer.ggml.model", "gpt2", Kind.STRING, None),
        ("tokenizer.ggml.pre", "default", Kind.STRING, None),
        ("tokenizer.ggml.tokens", tokens, Kind.ARRAY, Kind.STRING),
        ("tokenizer.ggml.token_type", [1] * BYTES, Kind.ARRAY, Kind.INT32),  # normal ones
        ("tokenizer.ggml.merges", merges, Kind.ARRAY, Kind.STRING),
        ("tokenizer.ggml.bos_token_id", end, Kind.UINT32, None),
        ("tokenizer.ggml.eos_token_id", end, Kind.UINT32, None),
        ("tokenizer.ggml.add_bos_token", False, Kind.BOOL, None),
    ]


def copy_tokenizer(source: ModelFolder, path: Path) -> list[Field]:
    """Return the tokenizer of a GGUF file; InvalidValueError if its tokens are not those of the folder."""
    import gguf

    fields = gguf.GGUFReader(path).fields
    listed = fields.get("tokenizer.ggml.tokens")
    tokens = [] if listed is None else listed.contents()
    numbers = source.tokenizer.vocabulary
    if len(tokens) != source.config.vocabulary or any(tokens[number] != token for token, number in numbers.items()):
        raise InvalidValueError(
            f"{path}: expected the {source.config.vocabulary} tokens of {source.path}. Got others: name the GGUF file of a "
            "model with the same tokenizer."
        )
    return [
        (name, field.contents(), field.types[0], field.types[1] if len(field.types) > 1 else None)
        for name, field in fields.items()
        if name.startswith("tokenizer.")
    ]


def tensors(source: ModelFolder) -> Iterator[tuple[str, Float32]]:
    """Yield each weight under llama.cpp's name."""
    config = source.config
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if not config.tied_head:
        names["lm_head.weight"] = "output.weight"
    for layer in range(config.layers):
        names |= {f"model.layers.{layer}.{a}.weight": f"blk.{layer}.{b}.weight" for a, b in LAYER_NAMES.items()}
    heads = {"attn_q": config.heads, "attn_k": config.key_value_heads}
    for hf_name, gguf_name in names.items():
        with safe_open(source.weight_files[hf_name], framework="pt") as file:
            tensor: Float32 = file.get_tensor(hf_name).float().numpy()
        part = gguf_name.split(".")[-2]
        yield gguf_name, interleave(tensor, heads[part]) if part in heads else tensor


def interleave(rows: Float32, heads: int) -> Float32:
    """Return rows (heads * head_size, n) with the two halves of each head interleaved."""
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


if __name__ == "__main__":
    main()
