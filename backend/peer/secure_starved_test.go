package peer

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStarvedReader: TLS that works long on a record, for lack of CPU time, ends no Write that comes afterwards. A Write that is in
// progress meanwhile ends, since TLS may wait for it.
func TestStarvedReader(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	b := newBelow(here)
	defer b.rest()
	go func() { _, _ = there.Write([]byte("x")) }()
	_, err := b.Read(make([]byte, 1))
	require.NoError(t, err)
	b.late()
	go func() { _, _ = io.ReadFull(there, make([]byte, 1)) }()
	_, err = b.Write([]byte("y"))
	require.NoError(t, err)

	failed := make(chan error)
	go func() {
		_, err := b.Write([]byte("z")) // nobody reads
		failed <- err
	}()
	for b.writing.Load() == 0 {
	}
	b.late()
	require.Error(t, <-failed)
}
