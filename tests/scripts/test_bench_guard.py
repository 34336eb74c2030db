"""The bench of the guard measures something, and memory does not grow with the log."""

from scripts import bench_guard


def test_a_larger_log_takes_no_more_memory():
    small, large = (bench_guard.measure(size, checks=50) for size in (8, 32))
    assert large["bytes"] > 2 * small["bytes"]
    assert 0 < small["check_s"] < 0.01
    assert large["peak_mib"] - small["peak_mib"] < 2
