package bed

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Pair runs two guests as hosts A and B, with one command in each, and waits for both. The rails are their only connection. The guests
// start at about the same time and do not wait for each other: commands must retry until the other host answers.
func Pair(t testing.TB, g Guest, a, b []string) (ra, rb Result) {
	t.Helper()
	Need(t)
	ra, rb, err := g.Pair(a, b)
	if err != nil {
		t.Fatal(err)
	}
	return ra, rb
}

// Pair runs two guests, like the function Pair. The error is about the guests, never about the commands.
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
			err = fmt.Errorf("host %s: %w (result of the other host: %v)", []string{"A", "B"}[i], e, results[1-i])
		}
	}
	return results[0], results[1], err
}

// railBuffer is the socket buffer of a rail's end, bytes. The host's limit for sockets does not apply to root.
const railBuffer = 8 << 20

// rail returns the two ends of a rail, a datagram socket pair: a frame written to one end is read from the other.
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
