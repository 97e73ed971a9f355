"""Measurements as frozen dataclasses, with their file formats."""
