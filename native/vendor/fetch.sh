#!/usr/bin/env bash
# Fetches the pinned vendor libraries and headers (pins.txt) into the cache and prints the folder, which has
# transformer_engine/wheel_lib, transformer_engine/common/include and nvidia/{cu13,cudnn,nccl}/{include,lib}.
# Does nothing where that folder exists. --headers-only: headers alone, unless the whole is there already.
#
# Needs python3 with pip, which reads its own settings for the package index, proxies and certificates. The cache is
# $CHAGRES_CACHE, else ~/.cache/chagres. The libraries are NVIDIA's, under the licences in the *.dist-info folders.
set -euo pipefail

fail() {
  printf 'fetch.sh: %s\n' "$@" >&2
  exit 1
}

what=all
case "${1:-}" in
  '') ;;
  --headers-only) what=headers ;;
  *) fail "unknown option '$1'; the only one is --headers-only" ;;
esac

here=$(cd "$(dirname "$0")" && pwd)
pins=$here/pins.txt
vendor=${CHAGRES_CACHE:-$HOME/.cache/chagres}/vendor
whole=$vendor/$(sha256sum "$pins" | cut -c 1-16)

if [ -d "$whole" ]; then
  echo "$whole"
  exit 0
fi
target=$whole
[ $what = headers ] && target=$whole-headers
if [ -d "$target" ]; then
  echo "$target"
  exit 0
fi

remedy="install it (Debian, Ubuntu: apt install python3-pip)"
command -v python3 > /dev/null || fail "python3 is not on PATH; $remedy"
python3 -m pip --version > /dev/null 2>&1 || fail "python3 has no pip; $remedy"

mkdir -p "$vendor"
work=$(mktemp -d "$vendor/fetching.XXXXXX")
trap 'rm -rf "$work"' EXIT
if [ $what = headers ]; then sed '/^# libraries only/,$d' "$pins"; else cat "$pins"; fi > "$work/pins.txt"

named="libraries and headers"
[ $what = headers ] && named=headers
echo "fetch.sh: fetching the vendor's $named into $target (about a gigabyte of wheels, once)" >&2
platforms=()
for tag in manylinux_2_28 manylinux_2_27 manylinux_2_18 manylinux_2_17 manylinux2014 manylinux_2_12 manylinux2010 manylinux_2_5 manylinux1; do
  platforms+=(--platform "${tag}_x86_64")
done
python3 -m pip download --quiet --require-hashes --no-deps --only-binary :all: "${platforms[@]}" \
  --python-version 3.12 --dest "$work/wheels" --requirement "$work/pins.txt" >&2 ||
  fail "pip could not fetch the wheels of $pins (its message is above)." \
    "Is the package index reachable? pip's settings (pip config list) name the index, the proxy and the certificates."

python3 - "$work/wheels" "$work/tree" $what << 'PYTHON'
import pathlib, sys, zipfile

wheels, tree, what = sys.argv[1:]
wanted = ("transformer_engine/wheel_lib/", "transformer_engine/common/include/", "nvidia/")
for wheel in sorted(pathlib.Path(wheels).glob("*.whl")):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            is_header = "/include/" in name
            is_library = name.startswith(wanted) and not name.endswith((".a", ".py"))
            if is_header or ".dist-info/" in name or (what == "all" and is_library):
                archive.extract(name, tree)
PYTHON

if ! mv -T "$work/tree" "$target" 2> /dev/null; then
  [ -d "$target" ] || fail "could not move the fetched files to $target"
fi
echo "$target"
