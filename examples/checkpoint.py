#!/usr/bin/env python3
"""python/nixl_gorail/examples/checkpoint.py, of the installed package or else of this source tree. With the package installed: python -m nixl_gorail.examples.checkpoint"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))

from nixl_gorail.examples.checkpoint import main  # noqa: E402

if __name__ == "__main__":
    main()
