"""The device side: one operation a file, behind the same verbs as `cpu_fallback`. See README.md beside this file."""
