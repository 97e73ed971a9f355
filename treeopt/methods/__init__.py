"""All methods of speculative decoding, planned and benchmarked with one machine, pair, set of prompts and runtime."""
