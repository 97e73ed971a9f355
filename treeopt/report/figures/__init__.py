"""Figures of results as panels, for files, notebooks and the report page."""
