#!/usr/bin/env bash
# Runs guard_smoke on the real libraries: vendor.sh SMOKE SEEDS VENDOR-FOLDER [LIBRARY-TO-LOAD-FIRST]
set -euo pipefail

smoke=$1 seeds=$2 vendor=$3
shift 3
transformer_engine=$vendor/transformer_engine/wheel_lib/libtransformer_engine.so
if [ ! -f "$transformer_engine" ]; then
  echo "skipped: no $transformer_engine; run native/vendor/fetch.sh, then configure again"
  exit 77
fi
cuda=$vendor/nvidia/cu13/lib
cudnn=$vendor/nvidia/cudnn/lib/libcudnn
export NVTE_CUDA_INCLUDE_DIR=$vendor/nvidia/cu13/include
# Each before those that need it, so that no search path is: nothing has to be set to find them.
exec "$smoke" "$seeds" "$transformer_engine" "$@" \
  "$cuda/libcudart.so.13" "$cuda"/libnvrtc-builtins.so.13.* "$cuda/libnvrtc.so.13" "$cuda/libcublasLt.so.13" \
  "$cuda/libcublas.so.13" "$cudnn"_graph.so.9 "$cudnn"_ops.so.9 "$cudnn"_cnn.so.9 "$cudnn"_adv.so.9 \
  "$cudnn"_engines_precompiled.so.9 "$cudnn"_engines_runtime_compiled.so.9 "$cudnn"_heuristic.so.9 "$cudnn.so.9" \
  "$vendor/nvidia/nccl/lib/libnccl.so.2"
