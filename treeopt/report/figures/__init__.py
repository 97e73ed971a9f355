"""Every figure of results, as panels: the same for files, notebooks and the report page."""
