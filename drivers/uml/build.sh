#!/usr/bin/env bash
# Builds a User Mode Linux kernel for `npusim uml` from Debian's source package, once, into a folder of the user's cache.
# Needs apt-get, dpkg-deb, gcc, make, bc and xz, and no root. If something is not available it prints one
# line and exits with status 0.
#
#   build.sh [kasan]            the plain kernel, or one with the address sanitizer
#   build.sh where [kasan]      says where it is, or would be
#
# NPUSIM_UML_SOURCE: another package of kernel sources (linux-source-6.12). NPUSIM_UML_JOBS: processes of make.
# NPUSIM_UML_CACHE: another folder than npusim-uml in the user's cache.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
where=false
[ "${1:-}" != where ] || { where=true; shift; }
variant=${1:-plain}
source=${NPUSIM_UML_SOURCE:-linux-source-6.1}
cache=${NPUSIM_UML_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/npusim-uml}
place=$cache/$variant
! $where || { echo "$place/linux"; exit 0; }

fragments=("$here/config")
preloaded=("$here/fixed_random.c" "$here/whole_xstate.c")
case $variant in
plain) ;;
kasan) fragments+=("$here/config-kasan") ;;
*) echo "usage: $0 [plain|kasan], got $variant" >&2; exit 2 ;;
esac

skip() { echo "make uml: skipped, $1"; exit 0; }

# Identifies the sources of the kernel: an existing kernel with the same recipe is kept. Increment the number after a
# change of this file that changes the kernel.
recipe=$(cat "${fragments[@]}" "${preloaded[@]}" <(echo "1 $source") | sha256sum | cut -c -16)
leave_alone() {
    [ ! -x "$place/linux" ] || [ "$(cat "$place/recipe" 2> /dev/null)" != "$recipe" ] || { echo "$place/linux is there"; exit 0; }
}
leave_alone

[ "$(uname -sm)" = "Linux x86_64" ] || skip "the kernel is for x86_64 Linux, this is $(uname -sm)"
for tool in apt-get dpkg-deb gcc make bc xz perl flock; do
    command -v "$tool" > /dev/null || skip "$tool is not here"
done

mkdir -p "$cache"
# Wait for another build of the same kernel: this is faster, and does not replace a kernel during a test.
exec 9< "$cache"
flock 9
leave_alone
work=$(mktemp -d "$cache/building.XXXXXX")
trap 'rm -rf "$work"' EXIT

fetch() { (cd "$work" && apt-get -qq download "$source" busybox-static flex bison m4 libfl2) > "$work/fetch.log" 2>&1; }
echo "fetching $source, busybox-static and the tools that the build needs"
fetch || { [ "$(id -u)" = 0 ] && apt-get -qq update > /dev/null 2>&1 && fetch; } \
    || skip "apt-get cannot fetch $source and what builds it: $(grep -m 1 -E '^(E|W|Err)' "$work/fetch.log" || echo 'no reason given')"
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/root"; done
rm -f "$work"/*.deb

root=$work/root
export PATH=$root/usr/bin:$PATH
export LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu BISON_PKGDATADIR=$root/usr/share/bison M4=$root/usr/bin/m4
# The kernel's version information does not depend on where it was built.
export KBUILD_BUILD_USER=npusim KBUILD_BUILD_HOST=uml KBUILD_BUILD_VERSION=1 KBUILD_BUILD_TIMESTAMP='Thu Jan  1 00:00:00 UTC 1970'

echo "unpacking"
tar -C "$work" -xf "$root/usr/src/$source.tar.xz"
tree=$work/$source
cat "${fragments[@]}" > "$work/wanted"
run() { # a step of the build; its output is shown if it fails
    "$@" > "$work/build.log" 2>&1 || { tail -n 40 "$work/build.log" >&2; echo "make uml: failed at: $*" >&2; exit 1; }
}
run make -C "$tree" ARCH=um allnoconfig
cat "$work/wanted" >> "$tree/.config"
run make -C "$tree" ARCH=um olddefconfig
# Unknown options, and options with unmet dependencies, are dropped silently.
missing=$(grep '^CONFIG_.*=[^n]' "$work/wanted" | grep -vxFf "$tree/.config" | paste -sd ' ') || true
[ -z "$missing" ] || { echo "make uml: failed, $source does not take $missing" >&2; exit 1; }
echo "building the $variant kernel: some minutes"
run make -C "$tree" -j "${NPUSIM_UML_JOBS:-$(nproc)}" ARCH=um linux modules

# Keep the kernel, busybox, and the part of the tree that module builds need.
result=$work/result
mkdir "$result"
strip -o "$result/linux" "$tree/linux"
cp "$root/bin/busybox" "$result/busybox" 2> /dev/null || cp "$root/usr/bin/busybox" "$result/busybox"
gcc -O2 -Wall -Wextra -shared -fPIC -o "$result/host.so" "${preloaded[@]}" -ldl
mkdir "$result/build"
(cd "$tree" && tar -cf - .config .kernelrelease Makefile Kbuild Module.symvers include scripts arch/um arch/x86 \
    $(find . -maxdepth 1 -name 'System.map' -printf '%P ') $([ -d tools/objtool ] && echo tools/objtool) 2> /dev/null || true) \
    | tar -C "$result/build" -xf -
find "$result/build/arch" \( -name '*.o' -o -name '*.a' -o -name '*.c' -o -name '*.S' \) -delete
echo "$recipe" > "$result/recipe"
rm -rf "$place"
mv "$result" "$place"
echo "$place/linux is made"
