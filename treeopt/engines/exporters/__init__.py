"""Exporters: an engine's setting as the files that the engine reads, one module per engine."""
