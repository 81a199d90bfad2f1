package bed

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Pair runs two guests as hosts A and B, joined by g.Rails rails and nothing else, a command in each, and waits for both.
// They start at about the same time, neither waits for the other: commands try again until the other side answers.
func Pair(t testing.TB, g Guest, a, b []string) (ra, rb Result) {
	t.Helper()
	Need(t)
	ra, rb, err := g.Pair(a, b)
	if err != nil {
		t.Fatal(err)
	}
	return ra, rb
}

// Pair is the function Pair without a test. The error is about the guests, never about the commands.
func (g Guest) Pair(a, b []string) (ra, rb Result, err error) {
	var ends [2][]*os.File
	for range g.Rails {
		x, y, err := rail()
		if err != nil {
			return ra, rb, err
		}
		ends[0], ends[1] = append(ends[0], x), append(ends[1], y)
	}
	var machines [2]*machine
	for i, command := range [][]string{a, b} {
		if machines[i], err = g.machine([]string{"A", "B"}[i], ends[i], command); err != nil {
			return ra, rb, err
		}
	}
	var results [2]Result
	var errs [2]error
	var wg sync.WaitGroup
	for i, m := range machines {
		wg.Go(func() { results[i], errs[i] = m.run() })
	}
	wg.Wait()
	for i, e := range errs {
		if e != nil {
			err = fmt.Errorf("host %s: %w (the other: %v)", []string{"A", "B"}[i], e, results[1-i])
		}
	}
	return results[0], results[1], err
}

// railBuffer is what may be on its way in a rail, bytes; the host's limit for sockets does not apply to root.
const railBuffer = 8 << 20

// rail is a cable: frames go in at one end and come out at the other.
func rail() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	for _, fd := range fds {
		for _, o := range []int{unix.SO_SNDBUFFORCE, unix.SO_RCVBUFFORCE} {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o, railBuffer); err != nil {
				return nil, nil, fmt.Errorf("socket buffer of %d bytes: %w", railBuffer, err)
			}
		}
	}
	return os.NewFile(uintptr(fds[0]), "railA"), os.NewFile(uintptr(fds[1]), "railB"), nil
}
