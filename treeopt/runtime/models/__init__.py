"""Models: loading, their forward passes over trees, caches."""
