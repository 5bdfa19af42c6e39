#!/usr/bin/env bash
# Fetches a Debian kernel for QEMU, the packages for building its modules, and busybox, once, to a folder of the user's
# cache. Needs apt-get, apt-cache, dpkg-deb, and no root. If something is not available it prints one line and exits
# with status 0.
#
#   fetch.sh            fetches them
#   fetch.sh where      says where the kernel is, or would be
#
# NPUSIM_QEMU_LINUX: another package of a kernel (linux-image-amd64, linux-image-6.1.0-40-cloud-amd64).
# NPUSIM_QEMU_CACHE: another folder than npusim-qemu in the user's cache.
set -euo pipefail

image=${NPUSIM_QEMU_LINUX:-linux-image-cloud-amd64}
cache=${NPUSIM_QEMU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/npusim-qemu}
place=$cache/$image
case ${1:-} in
where) echo "$place/vmlinuz"; exit 0 ;;
'') ;;
*) echo "usage: $0 [where], got $1" >&2; exit 2 ;;
esac

skip() { echo "kernel for QEMU: skipped, $1"; exit 0; }

if [ -f "$place/vmlinuz" ]; then
    echo "$place/vmlinuz is there"
    exit 0
fi
[ "$(uname -sm)" = "Linux x86_64" ] || skip "modules are built for x86_64 Linux, this is $(uname -sm)"
for tool in apt-get apt-cache dpkg-deb gcc make; do
    command -v "$tool" > /dev/null || skip "$tool is not here"
done

needs() { apt-cache depends "$1" 2> /dev/null | sed -n "s/^ *Depends: \(linux-$2.*\)/\1/p"; }

mkdir -p "$cache"
work=$(mktemp -d "$cache/fetching.XXXXXX")
trap 'rm -rf "$work"' EXIT

fetch() {
    # A package without a number in its name only depends on the newest one.
    local found headers
    found=$(needs "$image" image- | head -n 1)
    headers=${found:-$image}
    headers=linux-headers-${headers#linux-image-}
    # Dependencies of the headers: common headers, build tools for modules, the name of the compiler.
    # shellcheck disable=SC2046
    (cd "$work" && apt-get -qq download "${found:-$image}" "$headers" $(needs "$headers" '[hkc]') busybox-static)
} > "$work/fetch.log" 2>&1
echo "fetching $image, its headers and busybox-static"
fetch || { [ "$(id -u)" = 0 ] && apt-get -qq update > /dev/null 2>&1 && fetch; } \
    || skip "apt-get cannot fetch $image and its headers: $(grep -m 1 -E '^(E|W|Err)' "$work/fetch.log" || echo 'no reason given')"

result=$work/result
mkdir "$result"
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$result/root"; done
mv "$result"/root/boot/vmlinuz-* "$result/vmlinuz"
cp "$result/root/bin/busybox" "$result/busybox" 2> /dev/null || cp "$result/root/usr/bin/busybox" "$result/busybox"
for tree in "$result"/root/usr/src/linux-headers-*; do
    # Their Makefiles and links refer to another location.
    [ ! -f "$tree/Makefile" ] || sed -i "s#/usr/src/#$place/root/usr/src/#" "$tree/Makefile"
    case $tree in *-common*) ;; *) name=${tree##*/} ;; esac
done
ln -s "root/usr/src/$name" "$result/build"
compiler=$(sed -n 's/^CC *=.*\(gcc-[0-9]*\)$/\1/p' "$result/build/.kernelvariables" 2> /dev/null) || true
[ -z "$compiler" ] || command -v "$compiler" > /dev/null || skip "$compiler, which modules of $image are built with, is not here"
# Debian's own modules are not used.
rm -rf "$result"/root/lib/modules "$result"/root/usr/lib/modules "$result"/root/boot "$result"/root/usr/share
rm -rf "$place"
mv "$result" "$place"
echo "$place/vmlinuz is there"
