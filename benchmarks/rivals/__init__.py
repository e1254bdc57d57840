"""Side by side: systems that multiply matrices, scenarios of stragglers, one table. See docs/benchmarks.md."""
