"""Measuring drafters beside the draft model: their acceptance where trees are solved for, and decodes of some settings."""
