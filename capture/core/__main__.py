"""`python -m capture.core VERB`."""

import sys

from .cli import main

sys.exit(main(sys.argv[1:]))
