"""`python -m spark_pipeline`, with the folder examples/ on the path."""

from __future__ import annotations

from spark_pipeline.run import main

if __name__ == "__main__":
    raise SystemExit(main())
