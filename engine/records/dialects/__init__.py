"""Filters in the forms that other libraries use, read as ours. One file a form; none imports its library."""
