"""Health, comparisons and the ranges behind them."""
