"""`python -m activity_log`, with the folder examples/ on the path."""

from __future__ import annotations

from activity_log.run import main

if __name__ == "__main__":
    raise SystemExit(main())
