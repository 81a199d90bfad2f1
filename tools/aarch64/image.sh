#!/usr/bin/env bash
# Makes the guest of `make test-aarch64` once, in the folder given: root.ext4 (Debian 12, Python, NIXL's wheel, numpy), vmlinuz and the
# modules that the guest needs to mount a disk. No program for aarch64 runs here: the packages are only unpacked.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/apt.sh

release=bookworm python=3.11 # Debian 12's
packages=python3,busybox-static,iproute2,libnuma1,libstdc++6,linux-image-arm64
dir=$1 root=$1/root
started=$SECONDS
say "unpacking Debian $release for arm64 into $dir (once)"
rm -rf "$root" "$dir/modules"
mmdebstrap --mode=root --variant=extract --architectures=arm64 --include=$packages $release "$root" \
    "${AARCH64_MIRROR:-$(mirror)}" >"$dir/log" 2>&1 || { tail -n 20 "$dir/log" >&2 && exit 1; }
# What the packages' scripts would have made.
echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
echo '127.0.0.1 localhost aarch64' >"$root/etc/hosts"
ln -sf busybox "$root/bin/sh"
mkdir -p "$root"/{proc,sys,run,tmp,gorail,opt/nixl}

say "nixl-cu12 and numpy of tools/requirements.txt for aarch64"
grep -E '^(nixl|numpy)' tools/requirements.txt >"$dir/requirements.txt"
# shellcheck disable=SC2046
.venv/bin/pip install -q --disable-pip-version-check --no-deps --no-compile --target "$root/opt/nixl" --python-version $python \
    --only-binary=:all: $(printf -- '--platform manylinux_2_%s_aarch64 ' 17 27 28) -r "$dir/requirements.txt"
# Emulated, Python takes half a minute to compile these modules, in each process.
if [ "$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = $python ]; then
    .venv/bin/python -m compileall -q -j 0 -s "$root" "$root/usr/lib/python$python" "$root"/opt/nixl/{numpy,nixl_cu12} >/dev/null || true
else
    say "the tests want Python $python in .venv, to compile the guest's modules" && exit 1
fi

version=$(basename "$root"/lib/modules/*)
depmod -b "$root" "$version"
mkdir "$dir/modules"
modules=0
for name in virtio_pci virtio_blk ext4; do
    while read -r _ file; do
        [ -e "$dir"/modules/??-"$(basename "$file")" ] || cp "$file" "$dir/modules/$((10 + modules++))-$(basename "$file")"
    done < <(modprobe -d "$root" -S "$version" --show-depends $name)
done
cp "$root/bin/busybox" "$dir/busybox"
mv "$root/boot/vmlinuz-$version" "$dir/vmlinuz"
rm -rf "$root"/{boot,lib/modules,usr/share/{doc,man,locale}}
mke2fs -q -t ext4 -O ^has_journal -L root -d "$root" "$dir/root.ext4.part" "$(($(du -sm "$root" | cut -f1) * 5 / 4 + 64))M" >/dev/null
mv "$dir/root.ext4.part" "$dir/root.ext4"
rm -rf "$root"
say "$dir/root.ext4 is made, Linux $version ($((SECONDS - started)) s)"
