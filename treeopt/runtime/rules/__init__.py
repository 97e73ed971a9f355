"""Verification rules: pure functions of distributions, each with its sampler of drafts and selecting a path."""

from treeopt.runtime.rules.rule import RULES, Rule, get_rule

__all__ = ["RULES", "Rule", "get_rule"]
