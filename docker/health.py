"""The health check of the images: exits with 0 if the server on this machine answers.

``python health.py [PORT]``. It asks whether the process lives, which needs no key. Whether the index is built is
``/v1/ready``: a large one takes minutes, in which a server that is started again for it would never end.
"""

from __future__ import annotations

import http.client
import sys


def check(port: int) -> str | None:
    """What is wrong with the server at this port of 127.0.0.1; None: nothing."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=4)
    try:
        connection.request("GET", "/v1/health")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"port {port} does not answer: {error}"
    finally:
        connection.close()
    return None if status == 200 else f"port {port} answers with status {status}"


if __name__ == "__main__":
    sys.exit(check(int(sys.argv[1]) if len(sys.argv) > 1 else 8765))
