package e2e

import (
	"bytes"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/internal/pattern"
	"gorail/nixlapi"
	"gorail/test/worker"
)

// wiretap receives all packets of a machine, and looks for texts in them.
type wiretap struct {
	fd   int
	done chan struct{}
	wg   sync.WaitGroup

	mu    sync.Mutex
	bytes int
	found map[string]bool
}

func (h *host) tap(texts map[string][]byte) *wiretap {
	h.t.Helper()
	w := &wiretap{done: make(chan struct{}), found: map[string]bool{}}
	var err error
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in the network's order
	h.in(func() { w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all) })
	require.NoError(h.t, err)
	require.NoError(h.t, unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20))
	require.NoError(h.t, unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 10_000}))
	w.wg.Go(func() { w.run(texts) })
	return w
}

func (w *wiretap) run(texts map[string][]byte) {
	b := make([]byte, 128<<10)
	for {
		n, err := unix.Read(w.fd, b)
		if err != nil {
			select {
			case <-w.done:
				return
			default:
				continue
			}
		}
		w.mu.Lock()
		w.bytes += n
		for name, text := range texts {
			if bytes.Contains(b[:n], text) {
				w.found[name] = true
			}
		}
		w.mu.Unlock()
	}
}

// end waits until what was sent has been looked at.
func (w *wiretap) end() (bytes int, found map[string]bool) {
	close(w.done)
	w.wg.Wait()
	_ = unix.Close(w.fd)
	return w.bytes, w.found
}

// TestEncryption: with encryption=on bytes and notifications arrive, and the wires between two machines have none of them. With
// encryption=off they have them all.
func TestEncryption(t *testing.T) {
	t.Parallel()
	const size = 5<<20 + 77
	for _, value := range []string{"off", "on"} {
		t.Run(value, func(t *testing.T) {
			t.Parallel()
			ha, _, p := over(t, "provider", "tcp", "encryption", value, "log", "info")
			texts := map[string][]byte{"WRITE": make([]byte, 64), "READ": make([]byte, 64), "notification": []byte("attack at dawn, says the notification")}
			pattern.Fill(texts["WRITE"], seedA, 3<<20)
			pattern.Fill(texts["READ"], seedB, 3<<20)
			w := ha.tap(texts)
			a, b := p.buffers(size)
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				a.Fill(seedA)
				b.Fill(seedB)
				p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: texts["notification"]}).Do(limit)
				require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
				moved := uint64(seedA)
				if op == nixlapi.Read {
					moved = seedB
				}
				a.Want(moved)
				b.Want(moved)
			})
			n, found := w.end()
			require.Greater(t, n, 2*size, "the tap saw the wires")
			for name := range texts {
				require.Equal(t, value == "off", found[name], "%s on the wire", name)
			}
		})
	}
}
