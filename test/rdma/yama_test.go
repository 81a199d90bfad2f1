package rdma

import (
	"testing"

	"gorail/test/rdma/bed"
)

// TestYama: processes of root without CAP_SYS_PTRACE, under each scope of Yama. Scope 3 stays until the guest ends.
func TestYama(t *testing.T) {
	const inside = "test/rdma/inside"
	g, command := prepare(t, bed.Guest{Limit: guestLimit}, inside, "^TestYama$")
	r, err := g.Run(append([]string{"bash", "-c", `
		for scope in 0 1 2 3; do
			echo $scope > /proc/sys/kernel/yama/ptrace_scope || exit 9
			GORAIL_YAMA=$scope setpriv --bounding-set=-sys_ptrace "$@" || exit 1
		done`, "bash"}, command...)...)
	report(t, r, err, inside, "TestYama")
}
