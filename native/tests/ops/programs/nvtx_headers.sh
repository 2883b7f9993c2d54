#!/bin/sh
# Compiles nvtx_headers.cpp with NVIDIA's headers and runs it. Skipped (77) where they are not fetched.
# usage: nvtx_headers.sh COMPILER FOLDER_OF_NVTX_H PROFILER PROGRAM
set -eu
vendor=${CHAGRES_CACHE:-$HOME/.cache/chagres}/vendor
for header in "$vendor"/*/nvidia/cu13/include/nvtx3/nvToolsExt.h; do
    [ -f "$header" ] || continue
    include=${header%/nvtx3/nvToolsExt.h}
    "$1" -std=c++17 -Wall -Wextra -I"$2" -isystem "$include" -o "$4" "$(dirname "$0")/nvtx_headers.cpp" -ldl
    exec "$4" "$3"
done
echo "skipped: no nvtx3/nvToolsExt.h in $vendor/*/nvidia/cu13/include; native/vendor/fetch.sh fetches it"
exit 77
