#!/usr/bin/env bash
# tests/install/release.sh PACKAGES: the folder PACKAGES is a release, as scripts/package makes it.
#
# 1. it holds the files of one version, and their digests;
# 2. the source archive is the tree, and can be configured;
# 3. the wheel is small, and pip, pipx and uvx make `dckpt` of it, which works where there is no compiler.
#
# bare_machine.sh installs the others. Exits with 77 if there are no packages.
set -euo pipefail
skip() { echo "skipped: $*"; exit 77; }
fail() { echo "$*" >&2; exit 1; }
compgen -G "$1/SHA256SUMS" >/dev/null || skip "scripts/package has not been run: $1 has no SHA256SUMS"
packages=$(realpath "$1")
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
eval "$("$source/scripts/bootstrap" package)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "== the files"
version=$(sed -nE 's/.*VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' "$source/include/dckpt/version.h" | paste -sd .)
grep -q "^## \[$version\]" "$source/CHANGELOG.md" || fail "CHANGELOG.md does not describe $version"
cd "$packages"
sha256sum --check --quiet SHA256SUMS
wheel=$(echo dckpt-"$version"-py3-none-manylinux_2_*.whl)
for file in dckpt_"$version"_*.deb libdckpt-dev_"$version"_*.deb dckpt-"$version"-linux-*.tar.gz dckpt-"$version".tar.gz "$wheel"; do
  [[ -f $file ]] || fail "$file is missing, found $(ls)"
  grep -q "  $file\$" SHA256SUMS || fail "SHA256SUMS lacks $file"
done

echo "== the source archive"
tar -xzf dckpt-"$version".tar.gz -C "$work"
tree=$work/dckpt-$version
if git -C "$source" rev-parse --git-dir >/dev/null 2>&1; then
  diff <(cd "$source" && git ls-files | sort) <(cd "$tree" && find . -type f -printf '%P\n' | grep -v '^PKG-INFO$' | sort) ||
    fail "the archive does not hold what git tracks; run scripts/package again"
fi
cmake --preset package -S "$tree" -B "$work/configured" >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }

echo "== the wheel"
(($(stat -c %s "$wheel") <= 6 << 20)) || fail "$wheel has more than 6 MiB"
use() {  # COMMAND…: with nothing else on the path
  PATH=/nowhere "$@" --version | sed -n 1p | grep -x "dckpt $version"
  PATH=/nowhere "$@" verify --deep "$source/tests/data/checkpoints/mcore-0.16-fully-reshardable-tp2pp2dp2/ckpt" >/dev/null
  PATH=/nowhere "$@" config show production >/dev/null
}
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
use "$work/venv/bin/dckpt"
[[ -s $work/venv/share/man/man1/dckpt.1 && -s $work/venv/share/doc/dckpt/third_party/libssl-dev ]] || fail "the wheel lacks manual pages or licenses"
needed=$(ldd "$work/venv/bin/dckpt" | sed -E 's/^[[:space:]]*([^ ]+).*/\1/; s/.*\///' | sort | tr '\n' ' ')
[[ $needed =~ ^ld-linux[^\ ]*\ libc\.so\.6\ (libm\.so\.6\ )?linux-vdso\.so\.1\ $ ]] || fail "the wheel's tool needs $needed"
"$work/venv/bin/pip" uninstall --quiet --yes dckpt
[[ ! -e $work/venv/bin/dckpt ]] || fail "pip uninstall leaves the tool"

export PIPX_HOME=$work/pipx PIPX_BIN_DIR=$work/bin PIPX_MAN_DIR=$work/man UV_CACHE_DIR=$work/uv
"$DCKPT_WHEEL_PYTHON" -m pipx install --quiet --pip-args=--no-index "$wheel" >/dev/null 2>&1
use "$work/bin/dckpt"
use "$DCKPT_WHEEL_PYTHON" -m uv tool run --quiet --offline --no-index --python "$work/venv/bin/python" --from "$packages/$wheel" dckpt
echo "the release of $version is complete"
