"""Figures of the AgentIR paper that the report compares rows with, each with its id in docs/sources.md.

Its CPU figures are of a Jetstream2 g3.medium (8 x86 cores with AVX2, 29 GB, GCC 11.4). `fanrank published` prints
the rest.
"""

CPU_MACHINE = "8 x86 cores, 29 GB"
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
