"""The bench: cases and systems are declared once, verified, measured in one interleaved run, recorded as rows."""
