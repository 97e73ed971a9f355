"""All ways of speculating, planned and run on one machine, one pair, one set of prompts and one runtime."""
