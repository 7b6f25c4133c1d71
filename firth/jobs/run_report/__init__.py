"""Reports on runs: lineage, settings side by side, loss curves, metrics and samples."""
