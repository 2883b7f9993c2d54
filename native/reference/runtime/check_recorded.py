#!/usr/bin/env python3
"""Fails when a function of the reference takes a stream and does not ask whether it captures (cuda/capture.h).

A parameter without a name is never asked: the function repeats what its caller recorded.
"""

import re
import sys
from pathlib import Path

REFERENCE = Path(__file__).resolve().parent.parent
DEFINITION = re.compile(r"^ *(?:void|int) ((?:nvte_|ops_)?\w+)\(([^;{}]*?)\)\s*(?:try )?\{", re.M)
ASKS = ("recorded(", "recorded_by_value(", "recorded_problem(", "is_capturing(", "params.stream = stream")


def main():
    missing = []
    for file in sorted([*REFERENCE.glob("te/*.cpp"), *REFERENCE.glob("ops/*.cpp")]):
        text = file.read_text().replace("\\\n", "\n")
        for match in DEFINITION.finditer(text):
            if not re.search(r"\b(cudaStream_t|OpsStream) \w", match.group(2)):
                continue
            body = text[match.end():]
            end = re.search(r"^ *}", body, re.M)
            if not any(word in body[:end.start()] for word in ASKS) and not any(
                    word in body[:body.find("\n}")] for word in ASKS):
                missing.append(f"{file.relative_to(REFERENCE)}: {match.group(1)} enqueues work that no capture records")
    for line in missing:
        print(line, file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
