"""`python -m attngen`: the command line."""

from __future__ import annotations

import sys

from attngen.cli import main

sys.exit(main())
