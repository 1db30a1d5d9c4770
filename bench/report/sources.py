"""Published figures that the report compares rows with, each with its id in docs/sources.md. Facts only.

All are of the AgentIR paper, its CPU figures on a Jetstream2 g3.medium (8 x86 cores with AVX2, 29 GB, GCC 11.4), its
GPU figures on an A100-SXM4-40GB.
"""

from __future__ import annotations

from fanrank.engine.evaluate import headlines

CPU_MACHINE = "8 x86 cores, 29 GB"
GPU_MACHINE = "A100, 40 GB"

GROWTH_RECORDS, GROWTH_US = headlines.GROWTH_RECORDS, headlines.GROWTH_US
"""Table 2 (A037), parallel paths with 8 threads."""
GROWTH_SEARCHED = (0.395, 0.043, 0.008, 0.002, 0.001, 0.0, 0.0)
"""The share of the corpus that the temporal index searched, as printed (A037)."""
GROWTH_FACTORS = {"sequential": 955.0, "SIMD": 1466.0, "MaxScore": 1457.0, "temporal": 3.6}
"""From the smallest to the largest size (A038)."""

SESSION = {
    "sequential": (459.2, 1950.0, 0.755, 230_600.0),
    "SIMD": (87.8, 352.0, 0.139, 43_100.0),
    "MaxScore": (84.0, 366.0, 0.125, 39_800.0),
    "temporal": (0.43, 1.23, 0.0, 155.0),
}
"""Table 3 (A040): seconds in sum, p99 ms a step, share of steps over 200 ms, p99 us a query. The paper
computed them from Table 2's medians and log-normal noise; they were not run."""

BUILD_RECORDS_PER_S = 27_000
"""Records a second, from 4,052 to 5 million (A041)."""
STREAMED_DOCUMENTS_PER_S = 56_800
"""Documents a second of MS MARCO in chunks of 50,000 (A126)."""
STREAMED_PEAK_GB = (29.0, 12.7)
"""Peak memory of that build before (it ran out) and after chunks (A126)."""

BEIR = ("NFCorpus", "SciFact", "ArguAna", "SciDocs", "FiQA", "TREC-COVID", "Quora", "NQ")
"""The data sets of the four tables below, in their order."""
BEIR_DOCUMENTS = (3_600, 5_200, 8_700, 25_700, 57_600, 171_000, 523_000, 2_700_000)
NDCG = {
    "NFCorpus": (0.3238, 0.3267),
    "SciFact": (0.6826, 0.6828),
    "ArguAna": (0.3568, 0.3645),
    "SciDocs": (0.1545, 0.1566),
    "FiQA": (0.2536, 0.2425),
    "TREC-COVID": (0.5926, 0.6436),
    "Quora": (0.8081, 0.7886),
    "NQ": (0.2921, 0.2824),
    "MS MARCO": (0.4093, 0.4059),
}
"""Table 4 (A111): nDCG@10 of Pyserini and of AgentIR on a CPU."""
GPU_PHASES_MS = (
    (3.9, 0.04, 5.9, 0.06),
    (0.12, 0.05, 8.2, 0.05),
    (6.72, 2.51, 49.11, 0.15),
    (0.25, 0.62, 98.3, 0.12),
    (0.35, 0.75, 127.8, 0.09),
    (6.05, 0.63, 118.5, 0.04),
    (19.7, 21.8, 3_129.0, 1.45),
    (1.96, 7.04, 284.9, 0.05),
)
"""Table 1 (A054): ms of a batch to the device, scoring, top k, from the device; k 100. NQ's top k has lost a digit
(X24)."""
GPU_MS_PER_QUERY = (0.03, 0.04, 0.17, 0.11, 0.21, 2.52, 0.32, 0.82)
"""Table 1 (A054), all queries in one batch, k 100."""
CPU_8T_MS = (0.04, 0.08, 0.24, 0.12, 0.15, 0.35, 0.17, 1.50)
"""Table 4 (A111), 8 threads."""
PYSERINI_8T_MS = (1.16, 1.48, 2.81, 2.13, 1.68, 4.66, 1.55, 2.77)
"""Table 4 (A111), Lucene through Pyserini 0.22.1, 8 threads."""
PISA_1T_MS = (0.047, 0.44, 21.6, 0.73, 2.71, 6.50, 3.49, 11.97)
"""Table 5 (A112), BlockMax-WAND, one thread, k 100."""
GEOMETRIC_MEANS = {"Pyserini, 8 threads": 10.0, "PISA BlockMax-WAND, 1 thread": 10.9}
"""How many times faster AgentIR's 8 threads are (A112)."""
ABLATION_MS = (
    (0.04, 0.03, 0.03, 0.05),
    (0.22, 0.08, 0.09, 0.08),
    (1.54, 0.40, 0.47, 0.24),
    (1.08, 0.23, 0.20, 0.10),
    (1.85, 0.40, 0.36, 0.15),
    (14.92, 4.76, 2.15, 2.15),
    (2.22, 0.71, 0.60, 0.17),
    (67.60, 6.64, 4.23, 1.38),
)
"""Table 14 (A113): one scalar thread, with SIMD, with MaxScore, with 8 threads; k 100."""
THREADS_MS = {
    "NFCorpus": (0.02, 0.04, 0.04),
    "SciFact": (0.08, 0.07, 0.08),
    "FiQA": (0.38, 0.18, 0.15),
    "SciDocs": (0.23, 0.13, 0.12),
}
"""Table 15 (A114): 1, 4 and 8 threads, k 100."""
AMDAHL = {"FiQA": 0.31, "SciDocs": 0.46}
"""Serial shares from 8 threads (A123); the paper prints .55 for SciDocs, which its own times do not give."""

STAGES_MS = {"BM25": 0.40, "encoder": 51.98, "RRF": 0.05, "recency": 0.38}
"""A hybrid query's parts (A122)."""
TENANTS = ((1, 1.0), (2, 2.0), (4, 3.6), (8, 5.5))
"""Processes of one thread each, and their queries a second over one's (A124)."""

DOLLARS_PER_QUERY = {"AgentIR, .40 ms": 5.6e-9, "Pinecone, list price": 3.3e-7}
"""At .05 $ an hour for its machine (A127)."""
TARGETS_MS = {
    "a lexical look-up among 10 million memories (B002)": 12.0,
    "a temporal one (B002)": 2.0,
    "BM25 over 10,000 turns (C012)": 25.0,
    "over 100,000 (C012)": 80.0,
}
