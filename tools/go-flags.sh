# Sourced by what builds or tests Go code. go_flags and the two variables make the plugin, the tool and the tests without the race detector share
# compiled packages. Debug information is not made, because the plugin's is dropped when it is linked: 5 % of the processor time.
# shellcheck disable=SC2034
go_flags=(-trimpath -gcflags=all=-dwarf=false)
export CGO_CFLAGS=${CGO_CFLAGS--O2} CGO_CXXFLAGS=${CGO_CXXFLAGS--O2}
