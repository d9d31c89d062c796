#!/usr/bin/env bash
# tests/install/bare_machine.sh PACKAGES: installs and uses the packages in the folder PACKAGES, which
# scripts/package has made, on Debian systems that have nothing else.
#
# 1. the tarball is unpacked and run on a minimal system;
# 2. apt installs the tool's package there;
# 3. apt installs the development package on a system with a compiler, where README's example is
#    built through CMake, through pkg-config and without shared libraries, and the tool verifies what
#    it saves.
#
# The systems are made once, below ${DCKPT_CACHE:-~/.cache/dckpt}, and copied for each run. Needs root,
# and a Debian or Ubuntu whose package archive can be reached; without these it says so and exits with 77.
set -euo pipefail
skip() { echo "skipped: $*"; exit 77; }

((EUID == 0)) || skip "making a Debian system needs root"
command -v dpkg-deb apt-get unshare >/dev/null || skip "dpkg, apt and unshare are needed"
if [[ -z ${DCKPT_BARE_MACHINE:-} ]]; then  # mounts and copies of this run end with it
  unshare --mount --propagation private true 2>/dev/null || skip "mounts of its own cannot be had here"
  exec env DCKPT_BARE_MACHINE=1 unshare --mount --propagation private "$0" "$@"
fi
packages=$(realpath "$1")
compgen -G "$packages/*.deb" >/dev/null || skip "scripts/package has not been run: $packages has no packages"
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${DCKPT_CACHE:-$HOME/.cache/dckpt}/bare_machine
golden=mcore-0.16-fully-reshardable-tp2pp2dp2
mkdir -p "$cache/archives/partial"
exec 9>"$cache/lock"
flock 9
clean() {
  local system
  for system in "$cache"/run-* "$cache"/*.partial; do
    [[ -d $system ]] || continue
    leave "$system"
    rm -rf --one-file-system "$system"
  done
}
trap clean EXIT

one() {  # PATTERN: the only file of that name
  local found=("$packages"/$1)
  [[ ${#found[@]} == 1 ]] || { echo "expected one $1 in $packages, found ${found[*]}" >&2; exit 1; }
  echo "${found[0]}"
}
inside() {  # ROOT COMMAND: as root of that system, with this machine's proxies
  local settings
  mapfile -t settings < <(env | grep -iE '^(https?_proxy|no_proxy)=')
  mountpoint -q "$1/proc" || mount -t proc proc "$1/proc"
  mountpoint -q "$1/dev" || mount --rbind /dev "$1/dev"
  mountpoint -q "$1/var/cache/apt/archives" || mount --bind "$cache/archives" "$1/var/cache/apt/archives"
  env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    ${settings[@]+"${settings[@]}"} chroot "$1" bash -euc "cd /root; $2"
}
leave() {  # ROOT
  local folder
  for folder in var/cache/apt/archives dev proc; do
    ! mountpoint -q "$1/$folder" || umount --lazy "$1/$folder"
  done
}

get_debootstrap() {  # unpacked, not installed, where the machine lacks it
  if command -v debootstrap >/dev/null; then echo debootstrap; return; fi
  local folder=$cache/debootstrap
  if [[ ! -x $folder/usr/sbin/debootstrap ]]; then
    mkdir -p "$folder"
    (cd "$folder" && { apt-get download -qq debootstrap || { apt-get update -qq && apt-get download -qq debootstrap; }; } &&
      dpkg-deb -x debootstrap_*.deb .) >&2 || return 1
  fi
  echo "env DEBOOTSTRAP_DIR=$folder/usr/share/debootstrap $folder/usr/sbin/debootstrap"
}
minimal_system() {  # ROOT
  local debootstrap mirror
  debootstrap=$(get_debootstrap) || skip "debootstrap cannot be had"
  mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2>/dev/null |
    grep -oE 'https?://[^ ]+/debian/?( |$)' | head -1 | tr -d ' ') || true
  [[ -n $mirror ]] || skip "apt's sources name no archive of Debian"
  $debootstrap --variant=minbase --include=ca-certificates bookworm "$1" "$mirror" \
    >"$cache/debootstrap.log" 2>&1 || { tail -3 "$cache/debootstrap.log"; skip "debootstrap has failed, see $cache/debootstrap.log"; }
  cp -aL /etc/resolv.conf /etc/hosts "$1/etc/"
  cp -a /etc/apt/apt.conf.d/. "$1/etc/apt/apt.conf.d/"
  cp -a /usr/local/share/ca-certificates/. "$1/usr/local/share/ca-certificates/" 2>/dev/null || true
  cp -aL /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/" 2>/dev/null || true
}
system_with_compiler() {  # ROOT
  cp -a --reflink=auto "$cache/minimal" "$1"
  inside "$1" "apt-get update -qq && apt-get install -qq --no-install-recommends g++ cmake make pkg-config" \
    >"$cache/compiler.log" 2>&1 || { tail -3 "$cache/compiler.log"; skip "no packages from the archive, see $cache/compiler.log"; }
  leave "$1"
}
once() {  # NAME FILL: a complete system, or none
  [[ -d $cache/$1 ]] && return
  echo "making the system '$1'"
  rm -rf --one-file-system "$cache/$1.partial"
  "$2" "$cache/$1.partial"
  mv -T "$cache/$1.partial" "$cache/$1"
}
fresh() {  # NAME: sets root to a copy of that system, with a checkpoint in /root
  root=$cache/run-$1-$$
  cp -a --reflink=auto "$cache/$1" "$root"
  mkdir "$root/root/packages"
  cp -r "$source/tests/data/checkpoints/$golden/ckpt" "$root/root/golden"
}
use_tool='
cd /root
dckpt --version
dckpt inspect golden | sed -n 1,3p
dckpt verify --deep golden
dckpt config show production >/dev/null'

tarball=$(one 'dckpt-*-linux-*.tar.gz')
tool=$(one 'dckpt_*.deb')
development=$(one 'libdckpt-dev_*.deb')
once minimal minimal_system
once compiler system_with_compiler

echo "== the tarball on a minimal system"
fresh minimal
cp "$tarball" "$root/root"
inside "$root" '
tar -xzf dckpt-*-linux-*.tar.gz
dckpt-*/bin/dckpt --version
'
needed=$(inside "$root" 'ldd dckpt-*/bin/dckpt' | sed -E 's/^[[:space:]]*([^ ]+).*/\1/; s/.*\///' | sort | tr '\n' ' ')
only_libc='^ld-linux[^ ]* libc\.so\.6 (libm\.so\.6 )?linux-vdso\.so\.1 $'
[[ $needed =~ $only_libc ]] || { echo "bin/dckpt needs $needed"; exit 1; }
inside "$root" "PATH=\$(echo /root/dckpt-*/bin):\$PATH$use_tool"

echo "== apt installs the tool"
cp "$tool" "$root/root/packages"
inside "$root" 'apt-get update && apt-get install -y ./packages/*.deb' >"$cache/apt.log" 2>&1 ||
  { tail "$cache/apt.log"; exit 1; }
inside "$root" "$use_tool"
inside "$root" '
test -s /usr/share/doc/dckpt/docs/building.md
apt-get remove -qq dckpt >/dev/null 2>&1
! command -v dckpt'

echo "== apt installs the development package"
fresh compiler
cp "$tool" "$development" "$root/root/packages"
cp "$source/examples/quickstart.cpp" "$root/root"
cat >"$root/root/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.22)
project(quickstart LANGUAGES CXX)
find_package(dckpt REQUIRED)
add_executable(quickstart quickstart.cpp)
target_link_libraries(quickstart PRIVATE dckpt::core)
END
inside "$root" '
cd packages
apt-get install -y ./dckpt_*.deb ./libdckpt-dev_*.deb
' >"$cache/apt.log" 2>&1 || { tail "$cache/apt.log"; exit 1; }
inside "$root" '
cmake -S . -B build >/dev/null
cmake --build build >/dev/null
build/quickstart by_cmake
dckpt verify by_cmake'
inside "$root" '
g++ -std=c++20 quickstart.cpp $(pkg-config --cflags --libs dckpt) -o quickstart
./quickstart by_pkg_config
dckpt verify by_pkg_config'
inside "$root" '
g++ -std=c++20 -static quickstart.cpp $(pkg-config --static --cflags --libs dckpt) -o quickstart
./quickstart static
dckpt verify static'
echo "the packages work on a bare machine"
