"""`python -m apressure.cli` is the `apressure` command."""

from __future__ import annotations

import sys

from apressure.cli import main

if __name__ == "__main__":
    sys.exit(main())
