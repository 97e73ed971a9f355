"""Files: atomic writes, size limits, and errors that name the wrong field."""
