"""`python -m attngen`: the command line."""

from __future__ import annotations

import sys

from attngen.cli.main import main

sys.exit(main())
