"""Plans, profiles, benches and settings as text, tables, JSON, figures and the report page."""
