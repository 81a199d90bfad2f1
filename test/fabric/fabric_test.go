package fabric

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/native"
)

// program runs the cases of drivers/.
var program = native.Part{Name: "driver", Program: true, Libs: []string{"-ldl"}, Sources: []string{"test/fabric/drivers/main.c", "test/fabric/drivers/side.c",
	"test/fabric/drivers/ops.c", "test/fabric/drivers/lives.c", "test/fabric/drivers/ways.c"}}

// run is one case of the program: name and switches, and the expected breaches, output and status.
type run struct {
	name, kind, switches string
	breaches             []string
	out                  string
	fails                bool
}

func (r run) String() string {
	return strings.TrimSuffix(r.name+"/"+r.kind+"/"+r.switches, "/")
}

// runAll runs each case in its own process and compares the results.
func runAll(t *testing.T, runs []run) {
	lib, prog, dir := Build(t), program.Build(t), t.TempDir()
	file := func(i int, what string) string { return filepath.Join(dir, fmt.Sprint(i, what)) }
	var stdin, stderr strings.Builder
	for i, r := range runs {
		config := strings.TrimSuffix("kind="+r.kind+","+r.switches, ",")
		fmt.Fprintln(&stdin, r.name, config, file(i, ".breaches"), file(i, ".out"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, prog, lib)
	// A provider of the real library catches SIGABRT without these variables.
	cmd.Env = append(os.Environ(), "IPATH_NO_BACKTRACE=1", "HFI_NO_BACKTRACE=1")
	cmd.Stdin, cmd.Stderr = strings.NewReader(stdin.String()), &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	status := strings.Fields(string(out))
	require.Len(t, status, len(runs))
	for i, r := range runs {
		t.Run(r.String(), func(t *testing.T) {
			require.Equal(t, r.fails, status[i] != "0", "wait status %s\n%s", status[i], &stderr)
			said, err := os.ReadFile(file(i, ".out"))
			require.NoError(t, err)
			require.Equal(t, r.out, strings.TrimSpace(string(said)))
			var names []string
			for _, line := range Breaches(t, file(i, ".breaches")) {
				word, _, _ := strings.Cut(line, " ")
				names = append(names, word)
			}
			require.Equal(t, r.breaches, names)
		})
	}
}

// TestBreaches: each breach is recorded under its rule's name, and the call returns the fabric's error.
func TestBreaches(t *testing.T) {
	runAll(t, []run{
		{"bad_key", "efa-direct", "", []string{"bad_key"}, "err=22 prov=7\nerr=0 prov=7", false},
		{"bad_key", "cxi", "", []string{"bad_key"}, "err=5 prov=11\nerr=0 prov=11", false},
		{"closed_key", "efa", "", []string{"bad_key"}, "err=22 prov=7", false},
		{"bounds", "efa-direct", "", []string{"bounds"}, "err=22 prov=7", false},
		{"bounds", "cxi", "", []string{"bounds"}, "err=5 prov=11", false},
		{"access", "cxi", "", []string{"access"}, "err=5 prov=11", false},
		{"desc_missing", "efa-direct", "", []string{"desc"}, "rc=-22", false},
		{"desc_missing", "cxi", "", nil, "err=0 prov=0", false},
		{"desc_closed", "efa-direct", "", []string{"desc"}, "rc=-22", false},
		{"desc_range", "efa-direct", "", []string{"desc"}, "rc=-22", false},
		{"desc_access", "efa-direct", "", []string{"desc"}, "rc=-22", false},
		{"msg_size", "efa-direct", "", []string{"msg_size"}, "rc=-90", false},
		{"msg_size", "cxi", "", []string{"msg_size"}, "rc=-90", false},
		{"rma_size", "cxi", "rma_max=65536", []string{"rma_size"}, "rc=-90", false},
		{"inject_size", "cxi", "", []string{"inject_size"}, "rc=-90", false},
		{"iov", "cxi", "", []string{"iov"}, "rc=-22", false},
		{"iov", "efa-direct", "", []string{"iov"}, "rc=-22", false},
		{"rma_iov", "efa-direct", "", []string{"rma_iov"}, "rc=-22", false},
		{"rma_iov", "cxi", "rma_iov=2", nil, "err=0 prov=0", false},
		{"lengths", "cxi", "", []string{"lengths"}, "rc=-22", false},
		{"imm", "cxi", "", []string{"imm", "imm"}, "rc=-22\nrc=-22", false},
		{"imm", "efa-direct", "", []string{"imm", "imm"}, "rc=-22\nrc=-22", false},
		{"context_null", "efa-direct", "", []string{"context_null"}, "rc=-22", false},
		{"context_null", "cxi", "context2=1", []string{"context_null"}, "rc=-22", false},
		{"context_reused", "efa-direct", "", []string{"context_reused"}, "rc=-22", false},
		{"context_touched", "efa-direct", "", []string{"context_touched"}, "err=0 prov=0", false},
		{"no_peer", "cxi", "", []string{"no_peer"}, "rc=-99", false},
		{"removed_peer", "efa-direct", "", []string{"no_peer"}, "rc=-99", false},
		{"unknown_peer", "efa-direct", "", []string{"unknown_peer"}, "err=107 prov=14", false},
		{"unknown_peer", "cxi", "", nil, "err=0 prov=0", false},
		{"forgotten", "efa-direct", "", nil, "err=107 prov=14", false},
		{"stranger", "efa-direct", "", []string{"unknown_peer"}, "err=107 prov=14", false},
		{"cancel", "efa-direct", "", []string{"cancel"}, "rc=-38", false},
		{"cancel", "cxi", "cancel=1", nil, "rc=0", false},
		{"truncated", "cxi", "", []string{"truncated"}, "err=265", false},
		{"rnr", "efa-direct", "rnr_ms=20", []string{"rnr"}, "err=269 prov=10\nerr=0 prov=10", false},
		{"late_write", "efa-direct", "late=100000,hold=1000,seed=3", nil, "done=1 err=0", false},
		{"late_write", "efa-direct", "late=900,seed=3", []string{"late_write"}, "done=1 err=0", false},
		{"not_enabled", "cxi", "", []string{"not_enabled"}, "rc=-258", false},
		{"mr_order", "cxi", "prov_key=1", []string{"mr_order"}, "rc=-258 nokey=1 rc=0 nokey=0", false},
		{"mr_unenabled", "cxi", "", []string{"bad_key"}, "err=5 prov=11", false},
		{"key_size", "cxi", "", []string{"key_size"}, "rc=-129", false},
		{"key_twice", "cxi", "", nil, "rc=0 rc=-266", false},
		{"key_twice", "efa", "", nil, "rc=0 rc=0", false},
		{"not_allocated", "efa-direct", "", []string{"not_allocated"}, "rc=-14", false},
		{"not_allocated", "cxi", "allocated=0", nil, "rc=0", false},
		{"close_ep_first", "cxi", "", []string{"close_busy"}, "rc=-16", false},
		{"close_cq_first", "efa-direct", "", []string{"close_busy"}, "rc=-16", false},
		{"close_av_first", "efa-direct", "", []string{"close_busy"}, "rc=-16", false},
		{"close_domain_first", "efa", "", []string{"close_busy"}, "rc=-16", false},
		{"close_fabric_first", "cxi", "", []string{"close_busy"}, "rc=-16", false},
		{"double_close", "cxi", "", repeat("double_close", 6), "-9 -9 -9 -9 -9 -9", false},
		{"use_after_close", "cxi", "", repeat("use_after_close", 3), "-9 -9 -9", false},
		{"mr_in_flight", "efa-direct", "", []string{"mr_in_flight"}, "rc=0", false},
		{"av_in_flight", "cxi", "hold=1000,seed=2", []string{"av_in_flight"}, "rc=0", false},
		{"cq_overrun", "cxi", "", []string{"cq_overrun"}, "posted", false},
		{"av_twice", "efa", "", []string{"no_peer"}, "same=1 rc=0 rc=-99", false},
		{"av_twice", "cxi", "", nil, "same=1 rc=0 rc=0", false},
		{"bad_address", "efa", "", nil, "zeros=0 junk=0", false},
		{"bad_address", "cxi", "", nil, "zeros=1 junk=0", false},
		{"threads", "cxi", "", []string{"threads"}, "", false},
		{"threads_safe", "cxi", "", nil, "", false},
		{"api", "efa-direct", "", []string{"api"}, "rc=0", false},
		{"api", "cxi", "", nil, "rc=0", false},
	})
}

func repeat(s string, n int) []string {
	return strings.Fields(strings.Repeat(s+" ", n))
}

// TestWays: how the fabrics behave if the caller breaks no rule.
func TestWays(t *testing.T) {
	runAll(t, []run{
		{"clean", "efa", "", nil, "writes in order=0\nmessages in order=0", false},
		{"clean", "efa-direct", "", nil, "writes in order=0\nmessages in order=0", false},
		{"clean", "cxi", "", nil, "writes in order=0\nmessages in order=0", false},
		{"clean", "cxi", "order_sas=1", nil, "writes in order=0\nmessages in order=1", false},
		{"clean", "efa-direct", "shuffle=0", nil, "writes in order=1\nmessages in order=1", false},
		{"weak", "efa-direct", "", nil, "early=1", false},
		{"weak", "cxi", "", nil, "early=1", false},
		{"manual", "efa-direct", "", nil, "landed", false},
		{"manual", "cxi", "", nil, "landed", false},
		{"depth", "cxi", "tx=16,rx=8", nil, "sent=16 rc=-11 received=8 rc=-11 then=0", false},
		{"fail_at", "cxi", "fail_at=3,fail_errno=110,fail_prov=77", nil, "errors=1 err=110 prov=77", false},
		{"lost_sends", "cxi", "", nil, "errors=0 err=0 arrived=300", false},
		{"lost_sends", "cxi", "fail_sends=6,fail_errno=110", nil, "errors=64 err=110 arrived=236", false},
		{"lost_sends", "efa-direct", "fail_sends=6,fail_errno=110,seed=2", nil, "errors=58 err=110 arrived=242", false},
		{"lost_sends", "cxi", "fail_sends=6,fail_lands=1", nil, "errors=59 err=5 arrived=266", false},
		{"offers", "cxi", "rails=2", nil, "cxi/cxi/cxi0 cxi/cxi/cxi1 rdm=2 msg=-61 nomode=0 version=20001", false},
		{"offers", "efa-direct", "rails=1,version=0x20006", nil, "efa/efa-direct/rdmap0-rdm rdm=1 msg=-61 nomode=-61 version=20006", false},
		{"offers", "efa-direct:efa", "", nil, "efa/efa-direct/rdmap0-rdm efa/efa/rdmap0-rdm rdm=2 msg=-61 nomode=0 version=20001", false},
		{"waiting", "cxi", "", nil, "quiet=1", false},
		{"waiting", "efa-direct", "wait_fd=1", nil, "quiet=1", false},
		{"killed", "cxi", "", nil, "err=113 prov=35", false},
		{"killed", "efa-direct", "", nil, "err=103 prov=13", false},
	})
}
