"""Where the bench finds its input and leaves its output."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
CACHE = BENCH / ".cache"
"""Prepared corpora, the peers' index files and logs; may be deleted at any time."""
ENVIRONMENTS = BENCH / ".peers"
"""One virtual environment a peer; may be deleted at any time."""
RESULTS = BENCH / "results"


def data_folder() -> Path:
    """The folder with the real data sets: `FANRANK_DATA`, or the one beside the checkout."""
    return Path(os.environ.get("FANRANK_DATA", ROOT.parent / "shared" / "data"))
