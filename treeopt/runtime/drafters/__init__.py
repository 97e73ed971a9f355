"""Drafters, one module each; `drafter` defines their interface."""
