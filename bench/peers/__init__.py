"""One adapter a peer, each run inside the peer's own environment by `bench/harness/worker.py`."""
