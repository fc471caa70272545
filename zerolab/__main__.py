"""`python -m zerolab` is `zerolab`."""

import sys

from zerolab.cli import main

sys.exit(main())
