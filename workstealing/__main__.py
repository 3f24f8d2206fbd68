"""`python -m workstealing`: the command where its script is not on PATH."""

from __future__ import annotations

import sys

from workstealing.cli import main

sys.exit(main())
