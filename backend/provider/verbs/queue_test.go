package verbs

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/provider"
	"gorail/internal/pattern"
	"gorail/test/drive"
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
					seg := drive.Seg{Local: drive.Addr(a.mem) + uint64(i*size), Remote: b.mr.Base() + uint64(i*size), Len: size, Desc: a.mr.Desc(), Key: b.mr.Key(provider.Salt{})}
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

// A message without the wake flag does not wake a sleeper, and the next one with the flag does. A sleeper with an
// operation in flight is woken by its completion, whether it was posted before or after arming.
func TestQuietMessages(t *testing.T) {
	lib := imitation.Build(t)
	a, b := pair(t, lib)
	x, y := link(a, b)
	recv := func(id uint64) { require.NoError(t, b.d.Recv(y.Core(), id, b.mem[:64], b.mr.Desc())) }
	send := func(kind int, id uint64) {
		require.NoError(t, a.d.Together(drive.Op{Ep: x.Core(), Kind: kind, ID: id, Segs: drive.Msg(a.mem[:64], a.mr.Desc())}))
	}
	recv(0)
	recv(1)
	recv(2)
	require.True(t, b.d.Arm())
	send(drive.SendQuiet, 0)
	require.False(t, b.d.Readable(), "a quiet message")
	send(drive.Send, 1)
	require.True(t, b.d.Readable())
	b.until(2)

	require.True(t, b.d.Arm())
	require.False(t, b.d.Readable())
	require.NoError(t, b.d.RMA(y.Core(), drive.Write, 10, b.segs(a, 1, 64)...))
	require.True(t, b.d.Readable(), "posted since")
	b.until(3)

	lib.Set("delay", 2) // requests complete at the second poll of their side
	require.NoError(t, b.d.RMA(y.Core(), drive.Write, 11, b.segs(a, 1, 64)...))
	require.True(t, b.d.Arm())
	send(drive.SendQuiet, 2)
	a.until(3)
	require.True(t, b.d.Readable(), "posted before")
	b.until(5)
}

// TestQuietMessageTaken: the application takes a quiet message, for which there was no event, and posts: the completion wakes the sleeper all the same.
func TestQuietMessageTaken(t *testing.T) {
	a, b := pair(t, imitation.Build(t))
	x, y := link(a, b)
	for id := range uint64(4) {
		require.NoError(t, b.d.Recv(y.Core(), id, b.mem[:64], b.mr.Desc()))
	}
	require.True(t, b.d.Arm())
	for id := range uint64(2) {
		require.NoError(t, a.d.Together(drive.Op{Ep: x.Core(), Kind: drive.SendQuiet, ID: id, Segs: drive.Msg(a.mem[:64], a.mr.Desc())}))
		b.until(int(id) + 1)
	}
	require.False(t, b.d.Readable())
	require.NoError(t, b.d.RMA(y.Core(), drive.Write, 10, b.segs(a, 1, 64)...))
	require.True(t, b.d.Readable())
	b.until(3)
	a.until(2)

	require.True(t, b.d.Arm())
	require.NoError(t, a.d.Together(drive.Op{Ep: x.Core(), Kind: drive.SendQuiet, ID: 2, Segs: drive.Msg(a.mem[:64], a.mr.Desc())}))
	b.until(4)
	require.True(t, b.d.Arm())
	require.NoError(t, a.d.Send(x.Core(), 3, a.mem[:64], a.mr.Desc()))
	require.True(t, b.d.Readable(), "armed again")
	b.until(5)
	a.until(4)
}

// The first packet sequence number of a queue pair uses all 24 bits. It depends neither on the clock nor on the queue
// pair number.
func TestPSNIsRandom(t *testing.T) {
	s := newSide(t, options(t, imitation.Build(t), true))
	const n = 64
	all, some, byClock := uint32(1<<24-1), uint32(0), 0
	nsec := func() uint32 {
		var now unix.Timespec
		require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
		return uint32(now.Nsec)
	}
	for range n {
		before := nsec()
		ep, err := s.rail.OpenEndpoint()
		require.NoError(t, err)
		after := nsec()
		defer ep.Close()
		a := ep.(*endpoint).addr
		require.Less(t, a.PSN, uint32(1<<24))
		all, some = all&a.PSN, some|a.PSN
		if guess := a.PSN ^ a.QPN<<7&(1<<24-1); (guess-before)&(1<<24-1) <= (after-before)&(1<<24-1) {
			byClock++
		}
	}
	require.Zero(t, all, "bits that are set in every number")
	require.EqualValues(t, 1<<24-1, some, "bits that are set in a number")
	require.Less(t, byClock, n, "every PSN follows from the clock")
}

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
		seg := drive.Seg{Local: drive.Addr(a.mem) + uint64(at(i)), Remote: b.mr.Base() + uint64(at(i)), Len: uint64(n), Desc: a.mr.Desc(), Key: b.mr.Key(provider.Salt{})}
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

// A RoCE device names the interface below it, if that interface is of this network namespace: it has the GID's address. An InfiniBand
// device names none.
func TestDeviceNet(t *testing.T) {
	for _, ethernet := range []bool{true, false} {
		lib := imitation.Build(t)
		lib.Set("ports", 2)
		devs, err := New(options(t, lib, ethernet)).Discover(context.Background(), provider.Filter{})
		require.NoError(t, err)
		require.Len(t, devs, 2)
		require.Equal(t, ethernet, devs[0].Net == "lo", "127.0.0.1: %+v", devs[0])
		require.Empty(t, devs[1].Net, "127.0.0.2, which lo does not have")
	}
}
