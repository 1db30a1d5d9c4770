"""The bench: measures fanrank and its peers in one interleaved run, verifies every answer, and records rows.

The rooms: `harness` (shared), `peers` (adapters), `gpu`, `report`, `research`. The other files are the commands.
"""
