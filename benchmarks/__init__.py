"""The project's own figures: ``python -m benchmarks``. See README.md."""
