"""From events to `summary.json`: tables, the timing rule, medians."""
