"""Settings: a profile and a plan as the files of other programs, one module each."""
