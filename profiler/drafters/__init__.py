"""Measuring drafters other than the draft model: acceptance of static trees, and decoding with settings of others."""
