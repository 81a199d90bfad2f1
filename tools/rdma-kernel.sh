#!/usr/bin/env bash
# Builds the kernel of test/rdma once, into GORAIL_RDMA_DIR (default ~/.cache/gorail/rdma): User-Mode Linux with the
# software RDMA drivers rxe and siw, from Debian's source package. Installs missing packages and says so. If the kernel of
# this configuration exists, the script does nothing. Remove the folder to build from a newer source package.
set -euo pipefail
cd "$(dirname "$0")/.."

source_package=linux-source-6.12
config=$PWD/test/rdma/kernel.config
dir=${GORAIL_RDMA_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/gorail/rdma}

. tools/apt.sh

missing=()
have ip || missing+=(iproute2)
have rdma || missing+=(iproute2)
have ib_write_bw || missing+=(perftest)
have rping || missing+=(rdmacm-utils)
have rdma-ndd || missing+=(rdma-core)
[ -d /etc/libibverbs.d ] && ls /usr/lib/*/libibverbs/librxe-rdmav*.so >/dev/null 2>&1 || missing+=(ibverbs-providers)
install "${missing[@]}"

# A tick of 1 ms instead of 10 ms: polling processes share the guest's one CPU, and switch at a tick.
tick='/^config HZ$/,/^$/s/default 100$/default 1000/'
# The size of the host's floating-point registers: with AMX they are larger than UML expects.
xstate=$PWD/test/rdma/xstate.h
registers='s/ptrace(PTRACE_SETREGSET, pid, NT_X86_XSTATE, &iov)/set_xstate(pid, \&iov)/; /^#include <registers.h>$/a #include "xstate.h"'
recipe=$( (cat "$config" "$xstate" && echo "$tick" "$registers") | sha256sum | cut -c1-16)
there() { [ -x "$dir/linux" ] && grep -qs "recipe $recipe\$" "$dir/stamp"; }
if there; then exit 0; fi

missing=()
for tool in gcc make flex bison bc xz; do
    have $tool || missing+=("${tool/#xz/xz-utils}")
done
[ -e /usr/include/libelf.h ] || missing+=(libelf-dev)
install "${missing[@]}"

mkdir -p "$dir"
exec 9>"$dir/lock"
flock 9 # a second script waits for the first and uses its kernel
if there; then exit 0; fi
rm -rf "$dir"/work.*
work=$(mktemp -d "$dir/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
started=$SECONDS

if ! apt-cache show "$source_package" >/dev/null 2>&1; then
    install "$source_package" # updates apt's package lists, or says what is missing
fi
version=$(apt-cache show --no-all-versions "$source_package" | sed -n 's/^Version: //p')
say "$source_package $version: download, unpack"
(cd "$work" && apt-get -q download "$source_package=$version" >/dev/null 2>"$dir/build.log") ||
    { cat "$dir/build.log" >&2 && say "apt does not have $source_package $version" && exit 1; }
dpkg-deb --fsys-tarfile "$work/${source_package}"_*.deb | tar xO "./usr/src/$source_package.tar.xz" | tar xJ -C "$work"
src=$work/$source_package out=$work/out
mkdir "$out"

sed -i "$tick" "$src/arch/um/Kconfig"
fp=$src/arch/x86/um/os-Linux
sed -i "$registers" "$fp/registers.c"
cp "$xstate" "$fp/"
[ "$(grep -c xstate.h "$fp/registers.c")/$(grep -c 'set_xstate(pid, &iov)' "$fp/registers.c")" = 1/1 ] ||
    { say "$source_package $version does not set the floating-point registers at the place that $xstate replaces" && exit 1; }
make -s -C "$src" ARCH=um O="$out" KCONFIG_ALLCONFIG="$config" allnoconfig >>"$dir/build.log" 2>&1
if lost=$(grep '^CONFIG_' "$config" | grep -vxFf "$out/.config") || ! grep -qx CONFIG_HZ=1000 "$out/.config"; then
    say "$source_package $version does not accept" ${lost:-CONFIG_HZ=1000} "(see $config)" && exit 1
fi

say "building on $(nproc) CPUs, some minutes (log: $dir/build.log)"
make -s -C "$src" ARCH=um O="$out" -j"$(nproc)" linux >>"$dir/build.log" 2>&1 ||
    { tail -20 "$dir/build.log" >&2 && exit 1; }
rm -f "$dir/stamp"
strip -o "$dir/linux.part" "$out/linux"
mv "$dir/linux.part" "$dir/linux"
echo "$source_package $version recipe $recipe" >"$dir/stamp"
say "$dir/linux is built ($((SECONDS - started)) s)"
