"""Benchmarks. Results are ratios to a floor measured in the same run, because machines are noisy."""
