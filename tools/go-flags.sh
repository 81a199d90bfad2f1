# Sourced by what builds or tests Go code. go_flags and the two variables make the plugin, the tool and the tests without the race detector share
# compiled packages. Debug information is not made, because the plugin's is dropped when it is linked: 5 % of the processor time.
# shellcheck disable=SC2034
go_flags=(-trimpath -gcflags=all=-dwarf=false)
export CGO_CFLAGS=${CGO_CFLAGS--O2} CGO_CXXFLAGS=${CGO_CXXFLAGS--O2}

# like_plugin: the flags by which go vet and tests share the compiled packages of the plugin and the tool, unless the overlay reaches the toolchain
# by a link. Where nothing is in the cache it saves 100 s of processor time.
like_plugin() {
    if grep -qsx "GOROOT=$(go env GOROOT)" build/overlay.txt; then
        echo "$(tail -n 1 build/overlay.txt) -buildmode=pie ${go_flags[*]}"
    fi
}
