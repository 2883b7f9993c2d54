#!/bin/sh
# Compiles cupti_headers.cpp with NVIDIA's headers, of CUPTI_INCLUDE or what is fetched beside the other libraries, or of a CUDA toolkit.
# Skipped (77) where there are none. CUPTI_INCLUDE may name several folders, separated by colons.
# usage: cupti_headers.sh COMPILER PROGRAM
set -eu
vendor=${CHAGRES_CACHE:-$HOME/.cache/chagres}/vendor
cuda=${CUDA_HOME:-/usr/local/cuda}
includes=
found=
for folder in $(echo "${CUPTI_INCLUDE:-}" | tr : ' ') "$vendor"/*/nvidia/cu13/include "$cuda"/include "$cuda"/extras/CUPTI/include; do
    [ -d "$folder" ] || continue
    includes="$includes -isystem $folder"
    if [ -f "$folder/cupti_activity.h" ]; then found=$folder; fi
done
if [ -z "$found" ]; then
    echo "skipped: no cupti_activity.h; pip's nvidia-cuda-cupti has it: name its include folder by CUPTI_INCLUDE"
    exit 77
fi
# shellcheck disable=SC2086
"$1" -std=c++17 -w -I"$found" $includes -o "$2" "$(dirname "$0")/cupti_headers.cpp"
exec "$2"
