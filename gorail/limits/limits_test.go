package limits

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/gorail/measure"
	"gorail/nixlapi"
)

// TestLimits: every limit moves the bytes in both directions, also with more descriptors than one system call takes.
func TestLimits(t *testing.T) {
	const n, block, stride = 3000, 100, 128
	for _, kind := range measure.Limits {
		for _, op := range []string{"WRITE", "READ"} {
			a, err := nixlapi.Alloc(n * stride)
			require.NoError(t, err)
			b, err := nixlapi.Alloc(n * stride)
			require.NoError(t, err)
			src, dst := a.B, b.B
			if op == "READ" {
				src, dst = dst, src
			}
			for i := range src {
				src[i] = byte(i*7 + i/256)
			}
			var descs, other []Desc
			for i := range n {
				d := Desc{a.B[i*stride:][:block], b.B[i*stride:][:block], uintptr(b.Addr()) + uintptr(i*stride)}
				descs, other = append(descs, d), append(other, Desc{Local: d.Remote})
			}
			socks, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			require.NoError(t, err)
			answered := make(chan error, 1)
			go func() { answered <- Answer(socks[1], op, other) }()

			out := Run(kind, op, os.Getpid(), []Job{{descs, socks[0]}}, measure.Pace{Warmup: 1, Count: 3, Limit: time.Minute})
			require.NoError(t, out[0].Err, kind)
			require.EqualValues(t, 3, out[0].Done)
			require.EqualValues(t, 4, out[0].Posted)
			require.EqualValues(t, 3, out[0].Lat.Count())
			for i := range n {
				at := i * stride
				require.Equal(t, src[at:at+block], dst[at:at+block], "%s %s %d", kind, op, i)
				require.Zero(t, dst[at+block], "between the descriptors")
			}
			require.NoError(t, unix.Close(socks[0]))
			require.NoError(t, <-answered)
			require.NoError(t, unix.Close(socks[1]))
			require.NoError(t, a.Free())
			require.NoError(t, b.Free())
		}
	}
}

// TestLimitFails: memory that the other process does not have gives an error.
func TestLimitFails(t *testing.T) {
	a, err := nixlapi.Alloc(4096)
	require.NoError(t, err)
	bad := []Job{{Descs: []Desc{{Local: a.B[:100], At: 4096}}}}
	out := Run("process_vm", "WRITE", os.Getpid(), bad, measure.Pace{Count: 1, Limit: time.Minute})
	require.ErrorIs(t, out[0].Err, unix.EFAULT)
	require.NoError(t, a.Free())
}

// TestBuckets: C, Record and package hdrhistogram use the same buckets.
func TestBuckets(t *testing.T) {
	require.Equal(t, measure.Buckets, nixlapi.HistSize)
	for _, ns := range []uint64{0, 1, 127, 128, 129, 255, 256, 1000, 12345, 999_999, 1 << 30, 3_600_000_000_000} {
		h := measure.Times{N: make([]uint64, nixlapi.HistSize), Max: 1 << 62}
		h.N[nixlapi.HistIndex(ns)]++
		require.InEpsilon(t, float64(ns)+1, h.Quantile(0.5)+1, 0.01)
		var own measure.Times
		own.Record(time.Duration(ns))
		require.Equal(t, h.N, own.N)
	}
}

// TestPoll: stop ends a poll, with and without naps, also after the poll has ended by itself.
func TestPoll(t *testing.T) {
	for _, limit := range []time.Duration{0, time.Minute} {
		Poll(limit, 0)()
		Poll(limit, time.Millisecond)()
	}
}
