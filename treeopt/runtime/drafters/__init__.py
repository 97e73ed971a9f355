"""Drafters, one module each: what drafts the tokens of a step; `drafter` says what one must offer."""
