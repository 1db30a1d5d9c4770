"""Takes the records of an engine to files, to other engines, and back."""
