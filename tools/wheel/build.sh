#!/usr/bin/env bash
# `make wheels`: builds dist/nixl_gorail-VERSION-py3-none-manylinux_2_28_ARCH.whl for each ARCH given (default: x86_64 aarch64), on any
# Debian machine. zig's C compiler builds for glibc 2.28. C++ uses Debian's headers of libstdc++, because the shim shares objects with
# NIXL, and old symbols of the system's libstdc++ at run time. docs/packaging.md says more.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD

. tools/apt.sh
export PATH=$root/.venv/bin:$PATH GOFLAGS="${GOFLAGS:-} -buildvcs=false"

zig=.cache/zig
if ! cmp -s tools/wheel/requirements.txt $zig/installed.txt; then
    say "installing $(paste -sd ' ' tools/wheel/requirements.txt) into $zig"
    rm -rf $zig
    python3 -m venv $zig
    $zig/bin/pip install -q --disable-pip-version-check -r tools/wheel/requirements.txt
    cp tools/wheel/requirements.txt $zig/installed.txt
fi
zig_exe=$(echo "$root/$zig"/lib/python3*/site-packages/ziglang/zig)

# Prints the include folders of libstdc++ and the folder of its library, for an architecture.
libstdcxx() {
    local arch=$1 common specific lib version
    if [ "$arch" = "$(uname -m)" ]; then
        common=/usr/include/c++ specific=/usr/include/$arch-linux-gnu/c++/VERSION lib=/usr/lib/$arch-linux-gnu
    else
        common=/usr/$arch-linux-gnu/include/c++ specific=/usr/$arch-linux-gnu/include/c++/VERSION/$arch-linux-gnu lib=/usr/$arch-linux-gnu/lib
    fi
    version=$(ls "$common" 2>/dev/null | sort -V | tail -1)
    [ -n "$version" ] && [ -e "$lib/libstdc++.so.6" ] || return 1
    echo "$common/$version ${specific/VERSION/$version} $lib"
}

# Writes the compilers and meson's cross file for an architecture.
toolchain() {
    local arch=$1 dir=$root/.cache/wheel/$1 own specific lib
    read -r own specific lib < <(libstdcxx "$arch")
    local target="-target $arch-linux-gnu.2.28 -isystem $root/.cache/wheel/include -ffile-prefix-map=$root=."
    mkdir -p "$dir" .cache/wheel/include
    ln -sfn /usr/include/rdma .cache/wheel/include/rdma
    ln -sfn /usr/include/infiniband .cache/wheel/include/infiniband
    cat >"$dir/cc" <<EOF
#!/bin/sh
exec '$zig_exe' cc $target "\$@"
EOF
    cat >"$dir/c++" <<EOF
#!/bin/sh
case " \$* " in
*" -c "* | *" -E "*) ;;
*) set -- "\$@" -nostdlib++ '$lib/libstdc++.so.6' '$lib/libgcc_s.so.1' ;;
esac
exec '$zig_exe' c++ $target -nostdinc++ '-I$root/tools/wheel/include' '-I$own' '-I$specific' "\$@"
EOF
    cat >"$dir/ar" <<EOF
#!/bin/sh
exec '$zig_exe' ar "\$@"
EOF
    chmod +x "$dir"/{cc,c++,ar}
    cat >"$dir/cross.ini" <<EOF
[binaries]
c = '$dir/cc'
cpp = '$dir/c++'
ar = '$dir/ar'
[host_machine]
system = 'linux'
cpu_family = '$arch'
cpu = '$arch'
endian = 'little'
EOF
}

build() {
    local arch=$1 dir=$root/.cache/wheel/$1 out=build/wheel-$1
    export GOOS=linux CGO_ENABLED=1
    case $arch in
    x86_64) export GOARCH=amd64 ;;
    aarch64) export GOARCH=arm64 ;;
    *) say "wheels are built for x86_64 and aarch64, not $arch" && exit 2 ;;
    esac
    if ! libstdcxx "$arch" >/dev/null; then
        [ "$arch" = "$(uname -m)" ] && install g++ || install "libstdc++-$(ls /usr/include/c++ | sort -V | tail -1)-dev-${GOARCH}-cross"
    fi
    toolchain "$arch"
    "$dir/c++" -std=c++20 -O2 -fPIC -c tools/wheel/functexcept.cpp -o "$dir/functexcept.o"
    [ -f "$out/build.ninja" ] || meson setup "$out" --cross-file "$dir/cross.ini" "-Dcpp_link_args=$dir/functexcept.o" >"$dir/setup.log" ||
        { cat "$dir/setup.log" >&2 && exit 1; }
    ninja --quiet -C "$out" libplugin_GORAIL.so
    # Debug information of C names folders of zig, and the id depends on the compiler's folder: neither is the same in another tree.
    CC=$dir/cc CXX=$dir/c++ CGO_CFLAGS='-O2 -g0' go build -trimpath -ldflags "-s -w -buildid= -linkmode external -X main.version=$(cat VERSION)" \
        -o "$out/gorail" ./gorail
}

go generate ./internal/include
[ $# -gt 0 ] || set -- x86_64 aarch64
for arch in "$@"; do
    (build "$arch")
    $zig/bin/python tools/wheel/pack.py --arch "$arch" --plugin "build/wheel-$arch/libplugin_GORAIL.so" --tool "build/wheel-$arch/gorail" --to dist
done
