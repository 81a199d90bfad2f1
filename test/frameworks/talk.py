"""What a peer process does: it takes calls as JSON lines and answers each with a line. Functions are its commands."""

import json
import sys
import traceback
from typing import Callable

MARK = "@ "  # the frameworks print to standard output, too


def answer(value: object) -> None:
    print(MARK + json.dumps(value), flush=True)


def serve(*commands: "Callable[..., object]") -> None:
    """Serves until standard input ends."""
    known = {c.__name__: c for c in commands}
    answer("ready")
    for line in sys.stdin:
        name, args = json.loads(line)
        try:
            answer({"value": known[name](*args)})
        except Exception:
            answer({"error": traceback.format_exc()})
