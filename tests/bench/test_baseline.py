"""The AgentIR paper's pipeline, which benchmarks compare with, on the CPU."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from support.benches import load  # noqa: E402
from support.host_kernels import build_edited, need_compiler  # noqa: E402

from fanrank.kernels.cuda.launcher import Launcher  # noqa: E402
from fanrank.kernels.cuda_host import HostLauncher, build  # noqa: E402

(baseline,) = load("gpu.baseline")


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    need_compiler()


def launcher() -> Launcher:
    return HostLauncher(build_edited(baseline.SOURCE, (), lambda sources, include: build(sources, include=include)))


class Corpus:
    """A random corpus as the baseline reads it, and its scores in float64."""

    def __init__(self, seed: int, documents: int = 300, terms: int = 20, batch: int = 5) -> None:
        rng = np.random.default_rng(seed)
        tf = rng.integers(1, 9, size=(terms, documents)) * (rng.random((terms, documents)) < 0.25)
        lengths = tf.sum(axis=0) + 1
        term, document = np.nonzero(tf)
        idf = rng.uniform(0.1, 6.0, size=terms)
        self.average = float(lengths.mean())
        self.terms = np.stack([rng.choice(terms, size=4, replace=False) for _ in range(batch)]).astype(np.int32)
        self.terms[0, 2:] = -1
        self.multiplicities = rng.integers(1, 4, size=self.terms.shape).astype(np.int32)
        impact = idf[:, None] * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * lengths / self.average))
        self.scores = np.zeros((batch, documents))
        for query, slot in np.argwhere(self.terms >= 0).tolist():
            self.scores[query] += impact[self.terms[query, slot]] * self.multiplicities[query, slot]
        self.arrays: dict[str, Any] = {
            "offsets": torch.from_numpy(np.searchsorted(term, np.arange(terms + 1))),
            "documents": torch.from_numpy(document.astype(np.int32)),
            "frequencies": torch.from_numpy(tf[term, document].astype(np.int32)),
            "lengths": torch.from_numpy(lengths.astype(np.int32)),
            "idf": torch.from_numpy(idf.astype(np.float32)),
        }

    def search(self, launcher: Launcher, k: int, merge: str) -> tuple[Any, Any]:
        scores, documents = baseline.Baseline(launcher).search(
            torch.from_numpy(self.terms),
            torch.from_numpy(self.multiplicities),
            average_length=self.average,
            k=k,
            merge=merge,
            **self.arrays,
        )
        return scores.numpy(), documents.numpy()


@pytest.mark.parametrize("k", [1, 10, 32, 33, 128])
def test_baseline_merges_agree_and_follow_float64(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC A046 to A051: both merges give the same rows, close to float64; chunks of the batch change nothing."""
    corpus = Corpus(k)
    own = launcher()
    scores, documents = corpus.search(own, k, "naive")
    monkeypatch.setattr(baseline, "MATRIX_BYTES", 2 * 4 * 300)
    for merged, plain in zip((scores, documents), corpus.search(own, k, "warp"), strict=True):
        np.testing.assert_array_equal(merged, plain)
    for row, (found, numbers) in enumerate(zip(scores, documents, strict=True)):
        exact = corpus.scores[row]
        hits = min(k, int((exact > 0.0).sum()))
        assert (numbers[hits:] == -1).all()
        assert (found[hits:] == 0.0).all()
        assert len(set(numbers[:hits].tolist())) == hits
        np.testing.assert_allclose(found[:hits], exact[numbers[:hits]], rtol=1e-5)
        np.testing.assert_allclose(found[:hits], -np.sort(-exact)[:hits], rtol=1e-5)
