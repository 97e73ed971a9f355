"""Tokenizers, chat templates, prompts, data sets and stopping criteria."""
