"""Drafters, one module each: what guesses the tokens of a step; `treeopt.runtime.drafting` says what one must offer."""
