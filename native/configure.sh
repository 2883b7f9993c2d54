#!/bin/sh
# Configures a build folder. CMake refuses one that it configured for another checkout, where this one was moved or copied from:
# that is made anew.
# usage: configure.sh FOLDER [OPTION OF CMAKE ...]
set -eu
native=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
folder=$1
shift
if [ -f "$folder/CMakeCache.txt" ]; then
    home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$folder/CMakeCache.txt")
    cached=$(sed -n 's/^CMAKE_CACHEFILE_DIR:INTERNAL=//p' "$folder/CMakeCache.txt")
    if ! [ "$home" -ef "$native" ] || ! [ "$cached" -ef "$folder" ]; then
        rm -rf -- "$folder"
    fi
fi
exec cmake -S "$native" -B "$folder" "$@"
