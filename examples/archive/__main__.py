"""`python -m archive`, with the folder examples/ on the path."""

from __future__ import annotations

from archive.director import main

if __name__ == "__main__":
    raise SystemExit(main())
