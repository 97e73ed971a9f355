"""What is measured, as frozen records, each with the form that it has in a file."""
