"""`python -m apressure` is the command `apressure`."""

from __future__ import annotations

import sys

from apressure.cli import main

if __name__ == "__main__":
    sys.exit(main())
