#!/usr/bin/env bash
# Writes the bindings of the libraries that are named (te, ops, cuda, nccl, cudnn; all without arguments) anew with jextract:
# deletes them, lists each library's symbols in bindings/symbols, generates Java, writes the checksums. Needs jextract 25
# (JEXTRACT_HOME, else PATH) and, for cuda, nccl and cudnn, what native/vendor/fetch.sh needs. For Transformer Engine run
# native/guard/generate.py first: its te.h is read here.
#
#     bindings/regenerate.sh ops    # after a change to native/include/chagres/ops.h
set -euo pipefail

bindings=$(cd "$(dirname "$0")" && pwd)
native=$bindings/../native
generated=$bindings/src/generated
symbols=$bindings/symbols

libraries=("$@")
if [ $# -eq 0 ]; then libraries=(te ops cuda nccl cudnn); fi
for library in "${libraries[@]}"; do
  case $library in
    te | ops | cuda | nccl | cudnn) ;;
    *)
      echo "regenerate.sh: expected te, ops, cuda, nccl or cudnn, got '$library'" >&2
      exit 2
      ;;
  esac
done

jextract=${JEXTRACT_HOME:+$JEXTRACT_HOME/bin/jextract}
jextract=${jextract:-$(command -v jextract || true)}
if [ ! -x "$jextract" ]; then
  echo "regenerate.sh: no jextract at '${jextract:-PATH}'; set JEXTRACT_HOME to jextract 25's folder" \
    "(jdk.java.net/jextract)" >&2
  exit 1
fi
version=$("$jextract" --version 2>&1 | head -n 1)
if [ "$version" != "jextract 25" ]; then
  echo "regenerate.sh: expected jextract 25, got '$version': its output would differ from what is checked in" >&2
  exit 1
fi

prototypes=$(mktemp -d)
trap 'rm -rf "$prototypes"' EXIT
jextract=$(realpath "$jextract")
if [ -n "${CHAGRES_CACHE:-}" ]; then
  CHAGRES_CACHE=$(realpath -m "$CHAGRES_CACHE")
  export CHAGRES_CACHE
fi
cd "$symbols" # jextract reads compile_flags.txt here: no C library's headers, so that the host's do not matter

find_vendor_headers() {
  local vendor
  vendor=$("$native/vendor/fetch.sh" --headers-only)
  cuda=$vendor/nvidia/cu13/include
  nccl=$vendor/nvidia/nccl/include
  cudnn=$vendor/nvidia/cudnn/include
  # nccl.h declares functions without parameters as `f()`, which in C leaves the parameters open.
  sed -E 's/\(\);/(void);/' "$nccl/nccl.h" > "$prototypes/nccl.h"
}

# library class headers-whose-symbols-count header-file include-folders: the library's own symbols, as jextract options
list_symbols() {
  local library=$1 own=$2 header=$3
  shift 3
  local dump
  dump=$(mktemp)
  "$jextract" --dump-includes "$dump" "${@/#/-I}" "$header" 2>&1 | filter_messages
  grep -E "# header: .*/($own)\$" "$dump" | sed 's/ *#.*//' | LC_ALL=C sort -u > "$library.txt"
  rm -f "$dump"
}

generate() {
  local library=$1 class=$2 own=$3 header=$4
  shift 4
  list_symbols "$library" "$own" "$header" "$@"
  "filter_$library" < "$library.txt" > "$library.kept" && mv "$library.kept" "$library.txt"
  "$jextract" --output "$generated/java" --target-package "dev.chagres.bindings.$library" \
    --header-class-name "$class" "${@/#/-I}" "@$library.txt" "$header" 2>&1 | filter_messages
  drop_opaque_structs "$library"
  # Not the class loader's libraries: those of a second class loader would be refused.
  sed -i 's/SymbolLookup\.loaderLookup()/dev.chagres.bindings.OpenedLibraries.LOOKUP/' \
    "$generated/java/dev/chagres/bindings/$library"/*.java
  python3 "$bindings/pointers.py" "$generated/java/dev/chagres/bindings/$library"
  echo "$library: $(grep -c -- --include-function "$library.txt") functions"
}

drop_opaque_structs() {
  local kind name
  while read -r kind name; do
    case $kind in
      --include-struct | --include-union) [ -f "$generated/java/dev/chagres/bindings/$1/$name.java" ] || continue ;;
    esac
    echo "$kind $name"
  done < "$1.txt" > "$1.kept"
  mv "$1.kept" "$1.txt"
}

# Opaque structs have no layout to generate; jextract names each.
filter_messages() { grep -v 'warning: Skipping' || true; }

filter_te() { cat; }
filter_ops() { cat; }
# pnccl* are the same functions under the names that profilers call.
filter_nccl() { grep -v -E -- '--include-function pnccl'; }
filter_cudnn() { cat; }
# Of the vector types the runtime's functions take these two.
filter_cuda() { cat; printf -- '--include-struct %s\n' dim3 uint3; }

for library in "${libraries[@]}"; do
  rm -rf "$generated/java/dev/chagres/bindings/$library"
  case $library in
    te)
      generate te TransformerEngine 'te\.h|guard\.h' "$native/generated/include/chagres/te.h" "$native/include" \
        "$native/generated/include"
      ;;
    ops)
      generate ops Ops 'ops\.h' "$native/include/chagres/ops.h" "$native/include"
      python3 "$bindings/addresses.py" "$generated/java/dev/chagres/bindings/ops"
      ;;
    cuda)
      find_vendor_headers
      generate cuda CudaRuntime '(cuda_runtime_api|driver_types|texture_types|surface_types|device_types)\.h' \
        "$cuda/cuda_runtime_api.h" "$cuda"
      ;;
    nccl)
      find_vendor_headers
      generate nccl Nccl 'nccl\.h' "$prototypes/nccl.h" "$symbols/stand-ins" "$cuda" "$nccl"
      ;;
    cudnn)
      find_vendor_headers
      generate cudnn Cudnn 'cudnn[a-z_]*\.h' "$cudnn/cudnn.h" "$cuda" "$cudnn"
      ;;
  esac
done
case " ${libraries[*]} " in
  *" cuda "* | *" nccl "* | *" cudnn "*) python3 "$native/reference/runtime/generate_unsupported.py" ;; # from the symbols
esac

"$bindings/verify.sh" --write "$@"
