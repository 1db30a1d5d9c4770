"""Faults planted in the product, each with the test that must fail: ``python -m tests.support.mutants``."""
