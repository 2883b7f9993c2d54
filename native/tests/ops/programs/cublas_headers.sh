#!/bin/sh
# Compiles cublas_headers.cpp with NVIDIA's headers. Skipped (77) where they are not fetched.
# usage: cublas_headers.sh COMPILER FOLDER_OF_CUBLAS_H FOLDER_OF_CHAGRES SCRATCH_FOLDER
set -eu
vendor=${CHAGRES_CACHE:-$HOME/.cache/chagres}/vendor
for header in "$vendor"/*/nvidia/cu13/include/cublasLt.h; do
    [ -f "$header" ] || continue
    # The headers of 16-bit numbers want a file of another package: macros for code of which nothing is called here.
    mkdir -p "$4/nv"
    printf '#define NV_IF_TARGET(...)\n#define NV_IF_ELSE_TARGET(...)\n#define NV_DISPATCH_TARGET(...)\n' > "$4/nv/target"
    exec "$1" -std=c++17 -Wall -Wextra -fsyntax-only -I"$2" -I"$3" -isystem "${header%/cublasLt.h}" -isystem "$4" \
        "$(dirname "$0")/cublas_headers.cpp"
done
echo "skipped: no cublasLt.h in $vendor/*/nvidia/cu13/include; native/vendor/fetch.sh fetches it"
exit 77
