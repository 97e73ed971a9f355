"""A server before it serves: texts that arrive, the measured seconds and accepted ranks that they meet."""
