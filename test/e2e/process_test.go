package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/nixlapi"
	"gorail/test/hostmem"
	"gorail/test/worker"
)

// TestTargetExecutes: the target's process calls exec of a program with memory at the same addresses. The process keeps its number.
// A request that begins a look (4 ms) after the program does not succeed, and nothing writes to the program's memory from then on.
func TestTargetExecutes(t *testing.T) {
	t.Parallel()
	const size, look = 1 << 20, 5 * time.Millisecond
	for _, block := range []uint64{4 << 10, size} {
		o := worker.Options{Setenv: []string{"GORAIL_PROVIDER=sm"}}
		alice, bob := agentOf(t, "alice", o), agentOf(t, "bob", o)
		a, b := alice.Buffer(size, seedA), bob.Alloc(size, hostmem.Pinned)
		b.Fill(seedB)
		require.NoError(t, bob.Register(b.All()))
		alice.Learn(bob)
		write := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.Span(0, block), Remote: b.Span(0, block), Peer: "bob"})
		read := alice.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.Span(0, block), Remote: b.Span(0, block), Peer: "bob"})
		write.Do(limit)
		read.Do(limit)
		next := bob.Become(t.TempDir(), size)
		next.Begin()
		require.True(t, worker.Eventually(limit, next.Runs)) // no request meanwhile: the first one that fails ends the link
		began := time.Now()
		next.Mark()
		for time.Since(began) < look {
			time.Sleep(look)
		}
		a.Fill(seedA)
		for range 5 {
			require.False(t, ends(read), "a READ of %d bytes of another program succeeds", block)
			require.False(t, ends(write), "a WRITE of %d bytes to another program succeeds", block)
		}
		a.Want(seedA)
		require.Zero(t, next.Changed(), "bytes of the program have changed")
	}
}

// ends posts a request, and reports whether it has succeeded.
func ends(x *worker.Xfer) bool {
	s := x.Try(limit)
	return s == nixlapi.Success
}

// TestChildrenInheritNothing: a program that an application executes has no descriptor of GORAIL's: no socket, no
// shared memory, no device. Engines are connected by shared memory and by tcp. libfabric's tcp leaves its own waiting
// objects open (eventpoll, and pairs of unix sockets that wake it), but no connection and no port.
func TestChildrenInheritNothing(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"sm", "tcp", "sm,tcp"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			o := worker.Options{Setenv: []string{"GORAIL_PROVIDER=" + how}}
			alice, bob := agentOf(t, "alice", o), process(t, worker.Options{Env: ours(t), Setenv: o.Setenv})
			before := bob.Inherited()
			b := agent(bob, ours(t), "bob")
			from, to := alice.Buffer(1<<20, seedA), b.Buffer(1<<20, seedB)
			alice.Learn(b)
			b.Learn(alice)
			for _, x := range []*worker.Xfer{
				alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: from.All(), Remote: to.All(), Peer: "bob"}),
				b.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: to.All(), Remote: from.All(), Peer: "alice"}),
			} {
				x.Do(limit)
				to.Want(seedA)
			}
			require.Greater(t, b.Stats().FDs, len(before)+8)
			require.True(t, worker.Eventually(limit, func() bool { // connections are looked for a moment after they are made
				more := slices.DeleteFunc(bob.Inherited(), func(fd string) bool {
					return slices.Contains(before, fd) || how != "sm" && (strings.HasSuffix(fd, "anon_inode:[eventpoll]") || strings.HasSuffix(fd, " unix"))
				})
				return len(more) == 0
			}), "%q before, %q now", before, bob.Inherited())
		})
	}
}

// TestFIPS: with GODEBUG=fips140 Go's runtime verifies the checksum of the library that it is linked into. It ends the
// process if the checksum is wrong. The plugin's checksum is right: the processes run and move bytes.
func TestFIPS(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"on", "only"} {
		t.Run(mode, func(t *testing.T) {
			env := ours(t)
			debug := "GODEBUG=fips140=" + mode
			if set := os.Getenv("GODEBUG"); set != "" {
				debug += "," + set
			}
			one := func(name string) *worker.Agent {
				return agent(process(t, worker.Options{Env: env, Setenv: []string{debug}}), env, name)
			}
			p := &pairOf{env: env, ini: one("alice"), tgt: one("bob")}
			p.tgt.Polling(true)
			const size = 3<<20 + 77
			a, b := p.buffers(size)
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				a.Fill(seedA)
				b.Fill(seedB)
				p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("moved")}).Do(limit)
				require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
				moved := uint64(seedA)
				if op == nixlapi.Read {
					moved = seedB
				}
				a.Want(moved)
				b.Want(moved)
			})
		})
	}
}

// envLimit makes this process take a right away from itself before it does anything else.
const envLimit = "GORAIL_TEST_LIMIT"

// Values of envLimit.
const (
	seccomp    = "seccomp"    // no call reaches the memory of another process
	undumpable = "undumpable" // no process without CAP_SYS_PTRACE reaches this one's memory

	smallStacks     = "small stacks"     // threads have 128 KiB each
	unlimitedStacks = "unlimited stacks" // the system chooses
)

func maybeLimit() {
	var err error
	switch os.Getenv(envLimit) {
	case seccomp:
		err = worker.FilterCalls(unix.EPERM, worker.OthersMemory...)
	case undumpable:
		err = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	case smallStacks:
		err = stacks(128 << 10)
	case unlimitedStacks:
		err = stacks(unix.RLIM_INFINITY)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "limit:", err)
		os.Exit(2)
	}
}

// stacks makes the process begin again with that limit: the C library reads it at the start.
func stacks(limit uint64) error {
	r := unix.Rlimit{Cur: limit, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_STACK, &r); err != nil {
		return err
	}
	os.Unsetenv(envLimit)
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}
