package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/hostmem"
	"gorail/test/worker"
)

// TestAccess: an application registers memory that its peers may only read, or only write, by metaInfo or by option. What is not
// allowed ends in an error, the first time and later, and moves no byte. What is allowed works beside it.
func TestAccess(t *testing.T) {
	t.Parallel()
	limitedAccess(t)
}

// TestMemoryAccess is TestAccess between processes of one host, where the initiator copies by itself.
func TestMemoryAccess(t *testing.T) {
	t.Parallel()
	limitedAccess(t, "GORAIL_PROVIDER=sm")
}

func limitedAccess(t *testing.T, set ...string) {
	set = append(set, "GORAIL_LOG=info")
	begin := func(name string, opts ...option) *worker.Agent {
		env := ours(t)
		return agent(process(t, worker.Options{Env: env, Setenv: set}), env, name, opts...)
	}
	alice, bob := begin("alice"), begin("bob", params("remote_access", "write"))
	const size = 1 << 20
	a, readable, writable := alice.Buffer(size, seedA), bob.Alloc(size, hostmem.Anon), bob.Buffer(size, seedB)
	readable.Fill(seedB)
	require.NoError(t, bob.RegisterMeta("label=weights remote_access=read", readable.All()))
	alice.Learn(bob)
	for _, c := range []struct {
		op   nixlapi.Op
		b    *worker.Buf
		text string
	}{{nixlapi.Write, readable, "remote_access=read"}, {nixlapi.Read, writable, "remote_access=write"}} {
		x := alice.Xfer(worker.XferSpec{Op: c.op, Local: a.All(), Remote: c.b.All(), Peer: "bob", Notif: []byte("never")})
		for range 3 {
			s := x.Try(limit)
			require.Equal(t, nixlapi.ErrBackend, s) // the C API names no NIXL_ERR_NOT_ALLOWED; package python has it
		}
		release(t, x)
		a.Want(seedA)
		c.b.Want(seedB)
		says(t, alice.Worker, c.op.String(), "is not allowed", c.text)
	}
	alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: writable.All(), Peer: "bob"}).Do(limit)
	writable.Want(seedA)
	alice.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: readable.All(), Peer: "bob"}).Do(limit)
	a.Want(seedB)
	require.NoError(t, alice.GenNotif("bob", []byte("alone")))
	got := bob.WaitNotifs(1, limit)
	require.Len(t, got, 1)
	require.Equal(t, "alone", string(got[0].Msg))
}
