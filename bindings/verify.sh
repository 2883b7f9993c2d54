#!/usr/bin/env bash
# Compares every generated file and the headers it came from with bindings/src/generated/checksums.sha256 and says which
# is changed, missing or extra. With --write it writes that file instead; regenerate.sh does so. With --write LIBRARY... it
# writes the lines of these libraries' files (te, ops, cuda, nccl, cudnn) and leaves the others as they are.
set -euo pipefail

cd "$(dirname "$0")/.."
sums=bindings/src/generated/checksums.sha256

guarded_files() {
  find bindings/src/generated/java bindings/symbols native/generated -type f
  # Written by hand and read by jextract, or run after it: a change asks for a new run.
  printf '%s\n' native/include/chagres/ops.h native/include/chagres/guard.h bindings/addresses.py \
    bindings/pointers.py
}

# The file names of one library, as an extended regular expression.
files_of() {
  local own="bindings/src/generated/java/dev/chagres/bindings/$1/.*|bindings/symbols/$1\.txt|bindings/pointers\.py"
  case $1 in
    te) echo "$own|native/generated/(include/.*|te_guard\.cpp|smoke_calls\.h)|native/include/chagres/guard\.h" ;;
    ops) echo "$own|native/include/chagres/ops\.h|bindings/addresses\.py" ;;
    cuda | nccl | cudnn) echo "$own|native/generated/unsupported\.cpp" ;;
    *)
      echo "verify.sh: expected te, ops, cuda, nccl or cudnn, got '$1'" >&2
      return 1
      ;;
  esac
}

write_sums() {
  local library pattern="" kept
  for library in "$@"; do pattern="${pattern:+$pattern|}$(files_of "$library")"; done
  pattern="^(${pattern:-.*})\$"
  kept=$(grep -v -E "^[0-9a-f]{64}  ${pattern#^}" "$sums" || true)
  {
    if [ -n "$kept" ]; then echo "$kept"; fi
    guarded_files | grep -E "$pattern" | xargs sha256sum
  } | LC_ALL=C sort -k 2 > "$sums.new"
  mv "$sums.new" "$sums"
}

if [ "${1:-}" = --write ]; then
  write_sums "${@:2}"
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
    "what the file's first lines name, then bindings/regenerate.sh (or, after a change to ops.h alone," \
    "bindings/regenerate.sh ops)" >&2
fi
exit $status
