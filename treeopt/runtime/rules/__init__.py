"""Verification rules: each a pure function of distributions, with the drafting and the walk that belong to it."""

from treeopt.runtime.rules.rule import RULES, Rule, rule_named

__all__ = ["RULES", "Rule", "rule_named"]
