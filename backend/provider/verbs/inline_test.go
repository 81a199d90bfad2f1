package verbs

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake/drive"
	"gorail/internal/pattern"
	imitation "gorail/test/verbs"
)

// A queue pair's reported inline size is used, unless no device has that much. The bytes arrive even if the driver
// ignores the flag and reads them later through their key.
func TestInline(t *testing.T) {
	for _, c := range []struct{ report, limit int }{{-1, 64}, {0, 0}, {16, 16}, {64, 64}, {200, 200}, {1 << 20, 64}, {1<<32 - 1, 64}} {
		for _, ignore := range []int{0, 1} {
			t.Run(fmt.Sprintf("report=%d/ignore=%d", c.report, ignore), func(t *testing.T) {
				lib := imitation.Build(t)
				lib.Set("report_inline", c.report)
				lib.Set("ignore_inline", ignore)
				lib.Set("delay", 3) // requests are executed after the post
				testInline(t, lib, c.limit)
			})
		}
	}
}

func testInline(t *testing.T, lib *imitation.Lib, limit int) {
	a, b := pair(t, lib)
	x, y := link(a, b)
	sizes := []int{1, 15, 16, 17, 63, 64, 65, 199, 200, 201, 1024, 1025}
	at := func(i int) int { return i * 2048 }
	for i := range a.mem {
		a.mem[i] = byte(i*7 + i>>8)
	}
	for i, n := range sizes {
		require.NoError(t, b.d.Recv(y.Core(), uint64(i), b.mem[512<<10+at(i):512<<10+at(i)+n], b.mr.Desc()))
	}
	ops, inlined := uint64(0), 0
	lib.Zero()
	for i, n := range sizes {
		seg := drive.Seg{Local: drive.Addr(a.mem) + uint64(at(i)), Remote: b.mr.Base() + uint64(at(i)), Len: uint64(n), Desc: a.mr.Desc(), Key: b.mr.Key()}
		a.post(func() error { return a.d.RMA(x.Core(), drive.Write, ops, seg) })
		a.post(func() error { return a.d.Send(x.Core(), ops+1, a.mem[at(i):at(i)+n], a.mr.Desc()) })
		ops += 2
		if n <= limit {
			inlined += 2
		}
	}
	a.until(int(ops))
	b.until(len(sizes))
	require.Equal(t, inlined, lib.Count("inlined"))
	for i, n := range sizes {
		require.Zero(t, a.done[uint64(2*i)].Err)
		require.Zero(t, a.done[uint64(2*i+1)].Err)
		require.Zero(t, b.done[uint64(i)].Err)
		pattern.Same(t, a.mem[at(i):at(i)+n], b.mem[at(i):at(i)+n], "WRITE of %d bytes", n)
		pattern.Same(t, a.mem[at(i):at(i)+n], b.mem[512<<10+at(i):512<<10+at(i)+n], "SEND of %d bytes", n)
	}
}
