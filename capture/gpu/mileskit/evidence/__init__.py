"""Storing runs: scrubbing, `run.toml`, checksums."""
