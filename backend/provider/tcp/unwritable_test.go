package tcp

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/tcp/sock"
	"gorail/internal/pattern"
	"gorail/test/drive"
)

// joined returns two endpoints of one rail that are connected to each other.
func (n *node) joined() (a, b provider.Endpoint) {
	n.t.Helper()
	var ends [2]provider.Endpoint
	for i := range ends {
		e, err := n.rail.OpenEndpoint()
		require.NoError(n.t, err)
		e.(provider.Listener).Secure(security(i == 0))
		ends[i] = e
	}
	require.NoError(n.t, ends[0].Connect(ends[1].Addr()))
	require.NoError(n.t, ends[1].Connect(ends[0].Addr()))
	return ends[0], ends[1]
}

// TestUnwritableMemory: a WRITE to registered memory that the process itself may not write, such as weights that are mapped for
// reading, fails with EFAULT. The process lives, and READs of that memory work.
func TestUnwritableMemory(t *testing.T) {
	t.Parallel()
	unwritable(t, newNode(t, nodeMem, nil))
}

// TestUnwritableMemoryEncrypted: what is decrypted into place is refused as well.
func TestUnwritableMemoryEncrypted(t *testing.T) {
	t.Parallel()
	unwritable(t, newNodeOf(t, nodeMem, Options{Encryption: true}))
}

// TestUnwritableMemoryPacked: so is what is unpacked, a byte or more.
func TestUnwritableMemoryPacked(t *testing.T) {
	t.Parallel()
	for _, encrypted := range []bool{false, true} {
		n := newNodeOf(t, nodeMem, Options{Encryption: encrypted, Compression: sock.AlwaysPack})
		n.rail.c.TunePacking(1)
		unwritable(t, n)
	}
}

func unwritable(t *testing.T, n *node) {
	weights := drive.Alloc(nodeMem)
	defer func() { require.NoError(t, syscall.Munmap(weights)) }()
	for i := range weights {
		weights[i] = 7
	}
	require.NoError(t, unix.Mprotect(weights, unix.PROT_READ))
	m, err := n.rail.Register(drive.Addr(weights), uint64(len(weights)), 0, option.PeersBoth)
	require.NoError(t, err)
	defer m.Close()
	key := m.Key(security(true).Keys)
	for _, size := range []uint64{1, 64, 4 << 10, 200 << 10} {
		a, b := n.joined()
		for _, op := range []int{drive.Read, drive.Write} {
			id := n.id()
			require.NoError(t, n.d.RMA(a.Core(), op, id, drive.Seg{Local: drive.Addr(n.mem), Remote: m.Base() + 100, Len: size, Key: key}))
			n.until("an end", func() bool { _, ok := n.done[id]; return ok })
			if op == drive.Read {
				require.Zero(t, n.done[id].Err, "READ of %d bytes", size)
				pattern.Same(t, weights[100:100+size], n.mem[:size])
			} else {
				require.Equal(t, syscall.EFAULT, n.done[id].Err, "WRITE of %d bytes", size)
			}
		}
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
}

// TestPartlyWritableMemory: memory whose first bytes can be received into and whose later ones cannot makes the kernel's receive short, without
// an error. The transfer ends with EFAULT all the same, and does not wait for a byte that is there already.
func TestPartlyWritableMemory(t *testing.T) {
	for name, o := range map[string]Options{"clear": {}, "packed": {Compression: sock.AlwaysPack}, "packed, encrypted": {Encryption: true, Compression: sock.AlwaysPack}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			partlyWritable(t, newNodeOf(t, nodeMem, o))
		})
	}
}

func partlyWritable(t *testing.T, n *node) {
	const size = 1 << 20
	page := uint64(unix.Getpagesize())
	mem, other := drive.Alloc(size), drive.Alloc(size)
	var keys [2]uint64
	var at [2]provider.MR
	for i, b := range [][]byte{mem, other} {
		m, err := n.rail.Register(drive.Addr(b), size, 0, option.PeersBoth)
		require.NoError(t, err)
		at[i], keys[i] = m, m.Key(security(true).Keys)
	}
	hole := size/2/page*page + page
	require.NoError(t, unix.Mprotect(mem[hole:hole+page], unix.PROT_READ))
	for _, good := range []uint64{1, 3000, page, 70_000, 130_001, 300_000} { // bytes before the page that cannot be written
		for _, op := range []int{drive.Read, drive.Write} {
			a, b := n.joined()
			move := func(n2 uint64) syscall.Errno {
				seg := drive.Seg{Local: drive.Addr(other), Remote: at[0].Base() + hole - good, Len: n2, Key: keys[0]}
				if op == drive.Read {
					seg = drive.Seg{Local: drive.Addr(mem) + hole - good, Remote: at[1].Base(), Len: n2, Key: keys[1]}
				}
				id := n.id()
				require.NoError(t, n.d.RMA(a.Core(), op, id, seg))
				if n2 > good {
					time.Sleep(20 * time.Millisecond) // all of it is in the socket
				}
				n.until("an end", func() bool { _, ok := n.done[id]; return ok })
				return n.done[id].Err
			}
			for range 40 { // the socket's buffers grow
				require.Zero(t, move(good))
			}
			require.Equal(t, syscall.EFAULT, move(good+100_000), "op %d, %d bytes before the hole", op, good)
			if op == drive.Read { // the connection goes on
				require.Zero(t, move(good))
			}
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		}
	}
	for i, b := range [][]byte{mem, other} {
		require.NoError(t, at[i].Close())
		require.NoError(t, syscall.Munmap(b))
	}
}
