"""The simulations stand beside the benchmarks, outside of the package."""

from __future__ import annotations

import sys
from pathlib import Path

# At the end, so that no benchmark hides a module that a test wants.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
