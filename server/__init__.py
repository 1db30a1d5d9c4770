"""The engine behind HTTP: `fanrank serve` and its parts. `app.py` says how a request passes through them."""
