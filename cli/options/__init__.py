"""Options of the commands, declared as the fields of dataclasses, and the types of their values."""
