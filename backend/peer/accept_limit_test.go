package peer

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// poor is a listener without descriptors: each Accept fails.
type poor struct{ tries chan struct{} }

func (p poor) Accept() (net.Conn, error) {
	p.tries <- struct{}{}
	return nil, os.NewSyscallError("accept4", syscall.EMFILE)
}
func (p poor) Close() error   { return nil }
func (p poor) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7000} }

// lines collects what is logged.
type lines struct {
	sync.Mutex
	bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	return l.Buffer.Write(b)
}

// Without descriptors the target retries accept, and logs the failure once.
func TestCannotAcceptIsSaidOnce(t *testing.T) {
	log := &lines{}
	n := listen(t, newTarget(), func(c *Config) { c.Log = slog.New(slog.NewTextHandler(log, nil)) })
	l := poor{make(chan struct{})}
	require.True(t, n.spawn(func() { n.accept(l) }))
	for range 6 {
		<-l.tries
	}
	log.Lock()
	said := log.String()
	log.Unlock()
	go func() { // ends the last tries
		for range l.tries {
		}
	}()
	n.Close()
	close(l.tries)
	require.Equal(t, 1, strings.Count(said, "cannot accept"), said)
	require.Contains(t, said, "ulimit -n")
}
