"""Texts and tokens without a model: tokenizers, prompts, data sets, where a text stops."""
