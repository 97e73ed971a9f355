"""Files: whole or not at all, read with limits, every wrong field named."""
