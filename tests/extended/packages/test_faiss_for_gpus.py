"""A build of FAISS for GPUs, which loads without one: the calls go as far as the first that needs a GPU.

Where none is installed, `FANRANK_FAISS_GPU` names a folder with one (``pip install --target``).
"""

import json
import os
import subprocess
import sys
import textwrap

import faiss
import pytest

PROBE = """
    import json
    import faiss, numpy as np
    from fanrank.engine.vectors import faiss_index
    from fanrank.engine.vectors.index_options import Approximate
    from fanrank.engine.vectors.vectors import Vectors, normalize

    class Verbs:
        name, gpu = "a test", None

    rows = normalize(np.random.default_rng(0).standard_normal((2000, 24)))
    vectors = Vectors(rows, np.arange(2001))
    told = {"version": faiss.__version__, "cuvs": hasattr(faiss, "GpuIndexCagra"), "gpus": faiss.get_num_gpus()}
    if not told["gpus"]:
        # As far as the constructor, which names the GPU that is not there.
        faiss.get_num_gpus = lambda: 1
    told["kind"], told["errors"] = faiss_index.kind_of(faiss, 0), {}
    for kind in ("FlatIndex", *(["CagraIndex"] if told["cuvs"] else [])):
        try:
            getattr(faiss_index, kind)(faiss, vectors, Approximate(), 0)
            told["errors"][kind] = ""
        except RuntimeError as error:
            told["errors"][kind] = str(error)
    if told["cuvs"]:
        asked = faiss.SearchParametersCagra(itopk_size=96, search_width=2)
        asked.sel = faiss.IDSelectorBitmap(np.packbits(np.ones(2000, dtype=bool), bitorder="little"))
        told["asked"] = [asked.itopk_size, asked.search_width, asked.sel.is_member(1999), asked.sel.is_member(2000)]
        made, searched = faiss.GpuIndexCagraConfig(), faiss.SearchParametersCagra()
        told["defaults"] = [made.graph_degree, made.intermediate_graph_degree]
        told["defaults"] += [searched.itopk_size, searched.search_width]
    # The build serves the CPU as well.
    index = faiss_index.index_of(Verbs(), vectors, Approximate(ef_construction=40))
    told["nearest"] = [index.kind, index.nearest(rows[:5], 1, None, 1)[:, 0].tolist()]
    print(json.dumps(told))
"""


def test_the_real_build_takes_the_calls() -> None:
    folders = os.environ.get("FANRANK_FAISS_GPU", "")
    if not folders and not hasattr(faiss, "GpuIndexFlatIP"):
        pytest.skip("faiss is a build for the CPU; FANRANK_FAISS_GPU names a folder with another")
    paths = [*filter(None, folders.split(os.pathsep)), *(path for path in sys.path if path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", textwrap.dedent(PROBE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    real = json.loads(done.stdout.splitlines()[-1])
    assert tuple(map(int, real["version"].split(".")[:2])) >= (1, 14)
    assert real["kind"] == ("cagra" if real["cuvs"] else "flat")
    assert set(real["errors"]) == {"FlatIndex", *(["CagraIndex"] if real["cuvs"] else [])}
    if not real["gpus"]:
        # A call with wrong arguments would be refused before: SWIG tells overloads apart by them.
        assert all("Invalid GPU device 0" in error for error in real["errors"].values())
    assert real["nearest"] == ["hnsw", list(range(5))]
    if real["cuvs"]:
        assert real["asked"] == [96, 2, True, False]
        assert real["defaults"] == [64, 128, 64, 1]
