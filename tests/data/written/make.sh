#!/usr/bin/env bash
# make.sh RELEASE PREFIX: writes RELEASE/ with what is installed in PREFIX. Once per release that
# changes what dckpt writes; what is there is never written again.
#
# The model is a golden of Megatron-Core, whose expected.json knows its values. Those of the root
# are the formula of make.cpp.
set -euo pipefail
release=$(cd "$(dirname "$0")" && pwd)/$1 prefix=$(realpath "$2")
data=$(dirname "$(dirname "$release")")
[[ ! -e $release ]] || { echo "$release exists already" >&2; exit 1; }
mkdir "$release"
cd "$release"
model=$data/checkpoints/legacy-torch-vpp-tp1pp2/ckpt
dckpt=$prefix/bin/dckpt
"$dckpt" --version | head -2 >WRITER
"$dckpt" convert "$model" torch_dist --to torch_dist
"$dckpt" convert "$model" dcp --to dcp --exclude '*_extra_state*'
"$dckpt" convert "$model" torch --to torch --transformer-impl local
"$dckpt" convert "$model" zarr --to zarr --include 'decoder.final*' --include 'embedding*'
"$dckpt" convert "$model" safetensors --to safetensors --map none

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name dckpt-core.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046  # the flags are words
g++ -std=c++20 ../make.cpp $(pkg-config --cflags --libs dckpt-core) -o "$work/make"
"$work/make" root ../policy.yaml
rm root/.dckpt.lock  # names the machine
cp -r root "$work"
echo "$work/root" >"$work/list"
"$dckpt" verify --fleet "$work/list" --state fleet.json
