#!/usr/bin/env bash
# `make test-aarch64`: tests GORAIL's aarch64 build in a guest that qemu emulates: two agents of the wheel over shared memory and over tcp,
# the C drivers, and the tests of Go packages. The first run makes the guest's disk in .cache/aarch64 and needs root. Emulated on x86-64,
# a guest has that processor's order of memory accesses: a pass proves layouts, builds and system calls, not fences.
#
#   AARCH64_MIRROR  Debian's archive (default: the archive in this machine's apt sources, else http://deb.debian.org/debian)
#   AARCH64_LIMIT   seconds after which the guest is killed (default: 1800)
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
. tools/apt.sh

dir=$PWD/.cache/aarch64 work=$PWD/build/aarch64
mkdir -p "$dir"
exec 9>"$dir/lock"
flock -n 9 || { say "another run is in $dir" && exit 1; }
missing=()
have qemu-system-aarch64 || missing+=(qemu-system-arm)
have cpio || missing+=(cpio)
have mke2fs || missing+=(e2fsprogs)
recipe=$(cat tools/aarch64/image.sh tools/requirements.txt | sha256sum | cut -c1-16)
if [ "$(cat "$dir/stamp" 2>/dev/null)" != "$recipe" ]; then
    [ "$(id -u)" = 0 ] || { say "making the guest's disk needs root: run it as root once" && exit 1; }
    have mmdebstrap || missing+=(mmdebstrap)
    have depmod || missing+=(kmod)
    install "${missing[@]}"
    rm -f "$dir/stamp"
    tools/aarch64/image.sh "$dir" 9>&-
    echo "$recipe" >"$dir/stamp"
else
    install "${missing[@]}"
fi

rm -rf "$work"
mkdir -p "$work/disk" "$work/initrd"/{bin,proc,sys,dev,root}
tools/aarch64/build.sh "$work/disk" 9>&-

tools/aarch64/plan.sh "$work/disk" >"$work/disk/plan"
mke2fs -q -t ext4 -O ^has_journal -d "$work/disk" "$work/disk.ext4" "$(($(du -sm "$work/disk" | cut -f1) * 5 / 4 + 64))M" >/dev/null
cp tools/aarch64/init.sh "$work/initrd/init"
cp "$dir/busybox" "$work/initrd/bin/"
cp -r "$dir/modules" "$work/initrd/"
(cd "$work/initrd" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd.gz"

say "booting the guest, $(wc -l <"$work/disk/plan") steps (console: $work/console)"
booted=$SECONDS status=0
TIMEFORMAT='%0U %0S'
{ time timeout --kill-after=5 "${AARCH64_LIMIT:-1800}" qemu-system-aarch64 -M virt -cpu max,pauth-impdef=on -smp 2 -m 2048 -nic none -display none -monitor none \
    -no-reboot -serial "file:$work/console" -kernel "$dir/vmlinuz" -initrd "$work/initrd.gz" -append 'console=ttyAMA0 quiet panic=-1' \
    -drive "file=$dir/root.ext4,if=none,id=root,format=raw,readonly=on" -device virtio-blk-pci,drive=root \
    -drive "file=$work/disk.ext4,if=none,id=gorail,format=raw,readonly=on" -device virtio-blk-pci,drive=gorail </dev/null 9>&- 2>&3 || status=$?; } 3>&2 2>"$work/time"
guest=$((SECONDS - booted))
[ $status = 0 ] || say "qemu ended with status $status (124: AARCH64_LIMIT was reached)"
tr -d '\r' <"$work/console" | sed -n '/GUEST/,$p' >"$work/steps"
sed 's/^GUEST //' "$work/steps"
grep -q '^GUEST end' "$work/steps" || { say 'the guest did not come to its end; its last lines:' && tail -n 20 "$work/console"; }
missing=()
while read -r name _; do
    grep -q "^GUEST ok $name: ." "$work/steps" || missing+=("$name")
done <"$work/disk/plan"
[ ${#missing[@]} = 0 ] || { say "FAILED: ${missing[*]}" && exit 1; }
say "all steps are ok (guest: $guest s, $(awk '{ print $1 + $2 }' "$work/time") s of processor time; in all: $SECONDS s)"
