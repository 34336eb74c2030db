"""These tests need the environment of the labs: `make check-labs` runs them."""

from pathlib import Path

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path, config):
    """Ignore this folder unless the command line names it or something in it."""
    named = (Path(str(arg).split("::")[0]).resolve() for arg in config.args)
    asked = any(path == HERE or HERE in path.parents for path in named)
    return None if asked else True
