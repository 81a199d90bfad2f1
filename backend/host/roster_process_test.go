package host_test

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/host"
)

// rosterProcess is an engine's process: it enters when told, and takes the least used of four devices.
func rosterProcess(dir string) {
	var r *host.Roster
	held := &keep{}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "enter":
			var err error
			var took string
			if r, err = host.OpenRoster(dir, 0o700, held.closer); err == nil {
				err = r.Enter(func(others []host.Entry) host.Entry {
					took = leastUsed(others)
					return host.Entry{Weights: map[string]float64{took: 1}, Text: fmt.Sprint(os.Getpid())}
				})
			}
			fmt.Println(took, err)
		case "leave":
			r.Close()
			fmt.Println("left")
		case "fork":
			fmt.Println(fork(held.fds))
		case "careless fork":
			fmt.Println(fork(nil))
		}
	}
}

func leastUsed(others []host.Entry) string {
	used := map[string]float64{"0": 0, "1": 0, "2": 0, "3": 0}
	for _, e := range others {
		for d, w := range e.Weights {
			used[d] += w
		}
	}
	return slices.MinFunc(slices.Sorted(maps.Keys(used)), func(a, b string) int { return cmp.Compare(used[a], used[b]) })
}

// fork makes a child that closes these descriptors, as the core has children of fork do, and stays. It has none of Go's threads.
//
//go:norace
func fork(closes []int) (pid int) {
	child, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && child == 0 {
		for i := range closes {
			_, _, _ = syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(closes[i]), 0, 0)
		}
		for {
			_, _, _ = syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
	}
	return int(child)
}

// process is another process with an engine.
type process struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startProcess(t testing.TB, dir string) *process {
	p := &process{t: t, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), "TEST_ROSTER="+dir)
	var err error
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewScanner(out)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.kill)
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // -9
	_ = p.cmd.Wait()
}

func (p *process) tell(what string) {
	_, err := fmt.Fprintln(p.in, what)
	require.NoError(p.t, err)
}

func (p *process) answer() string {
	p.t.Helper()
	require.True(p.t, p.out.Scan(), "the process has ended")
	return p.out.Text()
}

func (p *process) do(what string) string {
	p.t.Helper()
	p.tell(what)
	return p.answer()
}
