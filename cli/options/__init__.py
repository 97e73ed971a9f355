"""Options made from records: what commands take, and how it is made of what was typed."""
