package inside

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/nixlapi"
	"gorail/test/hostmem"
	"gorail/test/worker"
)

// TestMemlock: a process may lock at most 16 MiB. The device refuses a larger registration. The log names the limit and how to raise it.
// A transfer of that memory is refused. Smaller registrations and their transfers succeed.
func TestMemlock(t *testing.T) {
	p := need(t, 1)
	var l unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l))
	if l.Cur != 16<<20 {
		t.Skip("needs RLIMIT_MEMLOCK of 16 MiB")
	}
	alice, bob, a, b := p.connect(1 << 20)
	big := alice.Alloc(64<<20, hostmem.Anon)
	require.NoError(t, alice.Register(big.All())) // an error would poison the agent's metadata
	const what, most = "ibv_reg_mr of 67108864 bytes", "RLIMIT_MEMLOCK: 16384 KiB may be locked"
	const how = "raise it: ulimit -l unlimited, LimitMEMLOCK=infinity of a systemd service"
	says(t, alice, what, most, how)
	alice.Forget()
	_, err := alice.TryXfer(worker.XferSpec{Op: nixlapi.Write, Local: big.Span(0, 1<<20), Remote: b.All(), Peer: "bob"})
	require.Error(t, err)
	says(t, alice, "its local memory could not be registered", most, how)
	require.NoError(t, alice.Deregister(big.All()))
	c := alice.Buffer(1<<20, 3)
	for seed, mine := range map[uint64]*worker.Buf{50: a, 60: c} {
		for _, way := range ways {
			src, dst := sides(way.op, mine, b)
			src.Fill(seed)
			alice.Xfer(worker.XferSpec{Op: way.op, Local: mine.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
			dst.Want(seed)
			seed++
		}
	}
	require.NoError(t, alice.Exit())
	require.NoError(t, bob.Exit())
}
