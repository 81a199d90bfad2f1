#!/usr/bin/env python3
"""Two NIXL agents in two processes move 64 MiB both ways and a notification: python/nixl_gorail/two_agents.py.

    NIXL_PLUGIN_DIR=/path/to/plugins python two_agents.py [--backend GORAIL] [--mib 64] [--rounds 20]

This runs that program from the source tree. With the package installed: python -m nixl_gorail.two_agents
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

from nixl_gorail.two_agents import main  # noqa: E402

if __name__ == "__main__":
    main()
