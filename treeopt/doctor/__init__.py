"""What this machine and installation are, and what would make measurements better; nothing is measured or changed."""
