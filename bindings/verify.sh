#!/usr/bin/env bash
# Compares every generated file and the headers it came from with bindings/src/generated/checksums.sha256 and says which
# is changed, missing or extra. With --write it writes that file instead; regenerate.sh does so.
set -euo pipefail

cd "$(dirname "$0")/.."
sums=bindings/src/generated/checksums.sha256

guarded_files() {
  find bindings/src/generated/java bindings/symbols -type f
  # Written by hand and read by jextract: a change asks for a new run.
  printf '%s\n' native/include/chagres/ops.h native/include/chagres/guard.h
  find native/generated -type f
}

if [ "${1:-}" = --write ]; then
  guarded_files | LC_ALL=C sort | xargs sha256sum > "$sums"
  exit 0
fi

status=0
sha256sum --check --quiet --strict "$sums" 2>/dev/null || status=1
extra=$(LC_ALL=C comm -23 <(guarded_files | LC_ALL=C sort) <(sed 's/^[0-9a-f]*  //' "$sums" | LC_ALL=C sort))
if [ -n "$extra" ]; then
  sed 's/$/: EXTRA/' <<< "$extra"
  status=1
fi
if [ $status -ne 0 ]; then
  echo "verify.sh: generated code and headers differ from when they were made. Do not edit generated code; run" \
    "what the file's first lines name, then bindings/regenerate.sh" >&2
fi
exit $status
