"""The process that `bench/serve.py` asks: the product's own server over SGD, and the plain engine in the same process.

It prints the server's address as a line of JSON. Then, for each line of JSON on standard input, it measures the plain
engine (``clients``, ``seconds``, ``seed``) or tells its answer (``numbers``), as a line of JSON.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

import fanrank as fr

from .asking import K, fire
from .workload import DIMENSION, Work


def host(work: Work) -> None:
    """Serve until standard input ends."""
    from fanrank.server.limits import Limits
    from fanrank.server.mcp_run import make_part
    from fanrank.server.run import HOST, open_sockets, run_app

    engine = fr.Engine(encoder=fr.OwnVectors(DIMENSION))
    rows = zip(work.ids, work.texts, work.vectors, strict=True)
    engine.add([fr.Record(name, text, embedding=vector) for name, text, vector in rows])
    queries = [fr.Query(vector=vector) for vector in work.question_vectors]
    engine.search(work.questions, K)
    engine.search(queries, K, strategy="dense")

    async def ask(numbers: Sequence[int]) -> None:
        hits = await engine.asearch([work.questions[number] for number in numbers], K)
        hits.ids  # noqa: B018 what every caller reads

    def obey() -> None:
        try:
            for line in sys.stdin:
                given = json.loads(line)
                if "numbers" in given:
                    batch = [(queries if given["dense"] else work.questions)[number] for number in given["numbers"]]
                    strategy = "dense" if given["dense"] else "bm25"
                    answer: Any = engine.search(batch, K, strategy=strategy).to_dicts()
                else:
                    asks = [ask] * given["clients"]
                    answer, _ = asyncio.run(fire(asks, len(work.questions), given["seconds"], given["seed"]))
                print(json.dumps(answer), flush=True)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def announce(url: str) -> None:
        print(json.dumps(url), flush=True)
        threading.Thread(target=obey, daemon=True).start()

    listeners = open_sockets(HOST, 0, loopback_only=True)
    try:
        run_app(engine, listeners, None, Limits(), announce, parts=[make_part(engine)])
    finally:
        for listener in listeners:
            listener.close()
        engine.close()
