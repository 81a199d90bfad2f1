package verbs

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake/drive"
	"gorail/internal/pattern"
	imitation "gorail/test/verbs"
)

// A completion event is lost. The next arm or poll finds the completion, and the next event wakes the sleeper,
// whichever of the two has taken the completion.
func TestLostEvent(t *testing.T) {
	for _, first := range []string{"arm", "poll"} {
		lib := imitation.Build(t)
		a, b := pair(t, lib)
		x, y := link(a, b)
		for id := range uint64(3) {
			require.NoError(t, b.d.Recv(y.Core(), id, b.mem[:64], b.mr.Desc()))
		}
		require.True(t, b.d.Arm())
		lib.Set("lose_event", 1)
		stall(t, a, x, 0)
		require.Equal(t, 1, lib.Count("lost"))
		require.False(t, b.d.Readable())
		if first == "arm" {
			require.False(t, b.d.Arm(), "there is something to poll")
		}
		b.until(1)
		require.True(t, b.d.Arm())
		stall(t, a, x, 1)
		require.True(t, b.d.Readable(), "%s first", first)
		b.until(2)
		require.True(t, b.d.Arm())
		require.False(t, b.d.Readable())
		a.until(2)
	}
}

func counts(lib *imitation.Lib, names ...string) (n []int) {
	for _, name := range names {
		n = append(n, lib.Count(name))
	}
	return n
}

// A device names the oldest request instead of the failed one (bnxt_re). The wrong operation may get the error. But no
// operation succeeds whose bytes have not arrived, and each is reported once.
func TestOldestNamed(t *testing.T) {
	for _, set := range []string{"", "async", "delay", "silent"} {
		for bad := range 12 {
			t.Run(fmt.Sprint(set, bad), func(t *testing.T) {
				lib := imitation.Build(t)
				lib.Set("oldest", 1)
				if set == "silent" {
					lib.Set("oldest", 2)
				}
				if set == "silent" || set == "delay" {
					lib.Set("delay", 3)
				} else if set == "async" {
					lib.Set("async", 1)
				}
				a, b := pair(t, lib)
				x, _ := link(a, b)
				const n, size = 12, 64
				for i := range n * size {
					a.mem[i] = byte(i/size + 1)
				}
				for i := range n {
					op := []int{drive.WriteUnsignaled, drive.WriteUnsignaled, drive.Write}[i%3]
					seg := drive.Seg{Local: drive.Addr(a.mem) + uint64(i*size), Remote: b.mr.Base() + uint64(i*size), Len: size, Desc: a.mr.Desc(), Key: b.mr.Key()}
					if i == bad {
						seg.Key ^= 1
					}
					require.NoError(t, a.d.RMA(x.Core(), op, uint64(i), seg))
				}
				for range 1000 {
					a.poll()
				}
				require.NoError(t, x.Close()) // some completions may still be missing
				a.until(n)
				failed := 0
				for i := range n {
					if a.done[uint64(i)].Err != 0 {
						failed++
						continue
					}
					pattern.Same(t, a.mem[i*size:(i+1)*size], b.mem[i*size:(i+1)*size], "operation %d", i)
				}
				require.NotZero(t, a.done[uint64(bad)].Err)
				require.GreaterOrEqual(t, failed, n-bad)
			})
		}
	}
}
