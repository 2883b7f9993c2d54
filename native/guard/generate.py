#!/usr/bin/env python3
"""Writes te.h, nvte.h, te_guard.cpp and smoke_calls.h into native/generated, from Transformer Engine's
headers and rules.py.

How to run, from the root of the project (needs g++ for its include folders):

    python3 -m venv build/guard && build/guard/bin/pip install libclang==18.1.1
    vendor=$(native/vendor/fetch.sh --headers-only)
    build/guard/bin/python native/guard/generate.py \
        "$vendor/transformer_engine/common/include/transformer_engine" --version 2.20.2
"""

import argparse
from pathlib import Path

import headers
import rules
import write_guard
import write_headers
import write_smoke

NATIVE = Path(__file__).resolve().parent.parent


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("headers", type=Path, help="folder with transformer_engine.h")
    arguments.add_argument("--version", required=True, help="Transformer Engine's version, for the first lines")
    options = arguments.parse_args()
    model = headers.read(options.headers)
    check_rules(model)
    for name, result, parameters in rules.UNDECLARED:
        values = tuple(headers.Parameter(p, t) for t, p in parameters)
        model.functions.append(headers.Function(name, result, values, "no header"))
    outputs = {
        "generated/include/chagres/te.h": write_headers.te_h(model, options.version),
        "generated/include/chagres/nvte.h": write_headers.nvte_h(model, options.version),
        "generated/te_guard.cpp": write_guard.te_guard_cpp(model, options.version),
        "generated/smoke_calls.h": write_smoke.smoke_calls_h(model, options.version),
    }
    for path, text in outputs.items():
        target = NATIVE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    print(f"{len(model.functions)} functions, {len(model.types)} types")


def check_rules(model):
    """A rule for a function or an argument that is not there is a mistake, or the library has changed."""
    known = {f.stem: {p.name for p in f.parameters} for f in model.functions}
    for table in (rules.OPTIONAL, rules.NULLABLE, rules.DEVICE_ADDRESS, rules.COUNT, rules.ELEMENTS, rules.GROUPED,
                  rules.TRANSPOSING, rules.TRANSPOSING_LISTS):
        for stem, names in table.items():
            for name in names:
                if name not in known.get(stem, ()):
                    raise SystemExit(f"rules.py: nvte_{stem} has no argument {name}")
    for key in [*rules.LEAST, *rules.MOST]:
        stem, name = key.split(".")
        if not any(name in names for other, names in known.items() if stem in ("*", other)):
            raise SystemExit(f"rules.py: there is no argument {key}")
    for table in (rules.EXTRA, rules.NOTES, rules.NEEDS, rules.CREATES, rules.DESTROYS):
        for stem in table:
            if stem not in known:
                raise SystemExit(f"rules.py: there is no nvte_{stem}")


if __name__ == "__main__":
    main()
