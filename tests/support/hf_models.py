"""Small random models of transformers, one for each kind of attention and positions that the adapter meets."""

import torch

VOCABULARY = 61
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 7,
    "pad_token_id": None,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SHORT_NAMES = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 96,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 7,
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
}
ARCHITECTURES = {
    "llama": ("Llama", GROUPED),
    "mistral": ("Mistral", {**GROUPED, "sliding_window": 64}),
    "gpt2": ("GPT2", SHORT_NAMES),
    "gpt_neox": ("GPTNeoX", SIZES),
    "opt": ("OPT", {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3, "pad_token_id": 1}),
    "phi": ("Phi", SIZES),
    "gemma2": ("Gemma2", {**HEADS, "sliding_window": 64}),
    "gemma3_text": ("Gemma3Text", {**HEADS, "sliding_window": 64}),
    "qwen3": ("Qwen3", HEADS),
    "olmo2": ("Olmo2", GROUPED),
    "mixtral": ("Mixtral", {**GROUPED, "num_local_experts": 4}),
    "qwen3_moe": ("Qwen3Moe", {**HEADS, **EXPERTS}),
    "cohere": ("Cohere", GROUPED),
    "falcon": ("Falcon", {**SIZES, "alibi": False}),
    "stablelm": ("StableLm", GROUPED),
    "deepseek_v3": ("DeepseekV3", {**SIZES, "num_key_value_heads": 4, **LATENT}),
}


def random_model(name, *, seed=0, **changes):
    """Return a random model."""
    import transformers  # which tests without it skip

    kind, sizes = ARCHITECTURES[name]
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return transformers.AutoModelForCausalLM.from_config(config).eval()
