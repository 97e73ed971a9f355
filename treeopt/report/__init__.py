"""Plans, profiles, benches and settings as texts, tables, JSON and pictures: what the commands print, for every caller."""
