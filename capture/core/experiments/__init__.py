"""Programs that measure, and write what they measured."""
