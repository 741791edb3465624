#!/usr/bin/env bash
# Carries peers and generated files to a GPU's machine that has torch, triton and transformers, and no network.
#
#     bash benchmarks/card.sh prepare DIR     # where attngen is: compiles all that is measured, into DIR/kernels.tar.xz
#     . benchmarks/card.sh unpack DIR TO      # on the GPU's machine: DIR/*.tar.xz into TO; sets PYTHONPATH and ATTNGEN_CACHE
#
# DIR also holds fa4.tar.xz and fa3.tar.xz, if the peers are to be measured: the packages flash-attn-4 and fa3-fwd, each
# with what it needs, in folders of these names.
case $1 in
prepare)
    set -euo pipefail
    here=$(cd "$(dirname "$0")" && pwd)
    to=$2/kernels
    rm -rf "$to"
    mkdir -p "$to"
    for part in models drawn packed steps first_call context holes; do
        "${PYTHON:-python}" "$here/$part.py" prepare "$to/$part"
    done
    "${PYTHON:-python}" "$here/gpu.py" prepare "$to/gpu"
    tar cf - -C "$2" kernels | xz -T1 --lzma2=preset=9e,dict=64MiB >"$2/kernels.tar.xz"
    rm -rf "$to"
    ls -l "$2/kernels.tar.xz"
    ;;
unpack)
    mkdir -p "$3"
    for pack in "$2"/*.tar.xz; do
        tar xJf "$pack" -C "$3" &
    done
    wait
    export PYTHONPATH="$3/fa4:$3/fa4/nvidia_cutlass_dsl/dsl_packages:$3/fa3" PYTHONUNBUFFERED=1 ATTNGEN_CACHE="$3/cache"
    ;;
*)
    echo "card.sh: prepare DIR, or unpack DIR TO" >&2
    exit 2
    ;;
esac
