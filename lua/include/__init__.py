"""Parts that several scripts share, taken in by ``--@include``."""
