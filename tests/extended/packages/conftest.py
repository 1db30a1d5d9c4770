"""Models are made in the tests or come with a package, so none is looked up on a hub."""

from __future__ import annotations

import os

# Read once, when huggingface_hub is first imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
