package shm

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/access"
)

// BenchmarkWatched looks at 100,000 regions of one file, and registers beside that. 99.9-us and longest-us are of the registrations.
func BenchmarkWatched(b *testing.B) {
	const n, size = 100_000, 64 << 10
	r := open(b, Options{}).(*rail)
	fd, err := unix.MemfdCreate("an application's", unix.MFD_CLOEXEC)
	require.NoError(b, err)
	require.NoError(b, unix.Ftruncate(fd, n*size))
	at, err := unix.MmapPtr(fd, 0, nil, n*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(b, err)
	for i := range uint64(n) {
		_, err := r.Register(uint64(uintptr(at))+i*size, size, 0, access.Both)
		require.NoError(b, err)
	}
	private, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(b, err)
	var took []time.Duration
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			select {
			case <-stop:
				return
			default:
			}
			began := time.Now()
			m, _ := r.Register(uint64(uintptr(private)), size, 0, access.Both)
			took = append(took, time.Since(began))
			_ = m.Close()
		}
	}()
	for b.Loop() {
		r.Recheck()
	}
	close(stop)
	<-over
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*999/1000].Microseconds()), "99.9-us")
	b.ReportMetric(float64(took[len(took)-1].Microseconds()), "longest-us")
}
