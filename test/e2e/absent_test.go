package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/hostmem"
	"gorail/test/worker"
)

// absent is a pair, one of whose processes has memory of an odd kind, beside other memory of both.
type absent struct {
	t        *testing.T
	p        *pairOf
	odd      hostmem.Odd
	mem, far *worker.Buf // the odd memory; the other end's
	atTarget bool
	access   hostmem.Access
	seed     uint64
	content  uint64 // seed of the odd memory's content, if that is known
	others   []*other
}

// other is a request between other buffers of the same pair.
type other struct {
	x        *worker.Xfer
	src, dst *worker.Buf
	seed     uint64
}

const (
	oddSize   = 1 << 20
	otherSize = 64 << 10
)

// TestAbsentMemory: registered memory of many kinds is unmapped, protected or truncated by its owner. A transfer that the memory no longer
// permits is an error that names it, at either end, and hurts no other transfer. What it permits still works.
func TestAbsentMemory(t *testing.T) {
	t.Parallel()
	ours(t)
	for i, way := range []struct {
		name, limit string
		params      []string
	}{
		{"tcp", "", []string{"provider", "tcp"}}, {"encrypted", "", []string{"provider", "tcp", "encryption", "on"}},
		{"shared memory", "", []string{"provider", "sm"}}, {"seccomp", seccomp, []string{"provider", "tcp", "encryption", "on"}},
		{"ring", seccomp, []string{"provider", "sm"}},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			o := worker.Options{Env: ours(t), Setenv: []string{envLimit + "=" + way.limit}} // seccomp: guarded copies go through a pipe
			p := &pairOf{env: o.Env}
			p.ini, p.tgt = agent(process(t, o), o.Env, "alice", params(way.params...)), agent(process(t, o), o.Env, "bob", params(way.params...))
			p.tgt.Polling(true)
			others := newOthers(p)
			plain := [2]*worker.Buf{p.ini.Buffer(oddSize, 1), p.tgt.Buffer(oddSize, 1)}
			for kind, odd := range hostmem.Odds {
				if testing.Short() && kind%5 != i { // each kind in one way
					continue
				}
				for _, atTarget := range []bool{false, true} {
					ok := t.Run(fmt.Sprintf("%s/target=%v", odd.Name, atTarget), func(t *testing.T) {
						a := newAbsent(t, p, kind, atTarget)
						a.far, a.others = plain[1-index(atTarget)], others
						a.try(odd.Before)
						a.mem.Change()
						a.try(odd.After)
						a.end()
					})
					if !ok {
						return
					}
				}
			}
		})
	}
}

func newOthers(p *pairOf) (out []*other) {
	for i := range 4 {
		a, b := p.ini.Buffer(otherSize, 1), p.tgt.Buffer(otherSize, 2)
		o := &other{src: a, dst: b, seed: 1000 * uint64(i+1)}
		op := nixlapi.Write
		if i%2 == 1 {
			op, o.src, o.dst = nixlapi.Read, b, a
		}
		p.ini.Learn(p.tgt)
		o.x = p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"})
		out = append(out, o)
	}
	return out
}

func newAbsent(t *testing.T, p *pairOf, kind int, atTarget bool) *absent {
	t.Helper()
	a := &absent{t: t, p: p, odd: hostmem.Odds[kind], atTarget: atTarget, seed: 100, content: 50}
	near := p.ini
	if atTarget {
		near = p.tgt
	}
	a.mem = near.AllocOdd(kind, oddSize, a.content)
	require.NoError(t, near.Register(a.mem.All()))
	p.ini.Learn(p.tgt)
	return a
}

func (a *absent) end() {
	a.t.Helper()
	near := a.p.ini
	if a.atTarget {
		near = a.p.tgt
	}
	require.NoError(a.t, near.Deregister(a.mem.All()))
}

// try reads the odd memory and writes it, whole and in part.
func (a *absent) try(access hostmem.Access) {
	a.t.Helper()
	a.access = access
	at := a.odd.At(oddSize)
	small := worker.Span(at-min(at, 100), 200)
	page := worker.Span(at-min(at, 1000), min(4300, oddSize-at))
	for _, write := range []bool{false, true} {
		for _, l := range []worker.Layout{worker.Span(0, oddSize), small, page} {
			a.transfer(write, l)
		}
	}
	if access == hostmem.ReadWrite {
		a.mem.Fill(a.content)
	}
}

// transfer moves a range of the odd memory to the other end, or back.
func (a *absent) transfer(write bool, l worker.Layout) {
	t := a.t
	t.Helper()
	op, need := nixlapi.Write, hostmem.ReadOnly
	if write == !a.atTarget {
		op = nixlapi.Read
	}
	if write {
		need = hostmem.ReadWrite
	}
	a.seed += 2
	if a.access == hostmem.ReadWrite {
		a.content = a.seed
		a.mem.Fill(a.content)
	}
	a.far.Fill(a.seed + 1)
	local, remote := a.mem, a.far
	if a.atTarget {
		local, remote = remote, local
	}
	x := a.p.ini.Xfer(worker.XferSpec{Op: op, Local: local.At(l), Remote: remote.At(l), Peer: "bob"})
	before := postAll(a.p, a.others[:2])
	s := x.Post()
	after := postAll(a.p, a.others[2:])
	if s == nixlapi.InProgress {
		s = x.Wait(limit)
	}
	what := fmt.Sprintf("%v of %d bytes at %d, seed %d\n%s\n%s", op, l.Len, l.Off, a.seed, a.p.ini.Output(), a.p.tgt.Output())
	switch {
	case a.access&need != need:
		require.Equal(t, nixlapi.ErrBackend, s, what)
		says(t, a.p.ini.Worker, "transfer failed", "code=GR-1076", fmt.Sprintf("%#x", a.mem.Addr))
	default:
		require.Equal(t, nixlapi.Success, s, what)
		if write {
			a.mem.WantBlocks(a.content, l, a.seed+1, l)
		} else {
			a.far.WantBlocks(a.seed+1, l, a.content, l)
		}
	}
	require.NoError(t, x.Release())
	before(t)
	after(t)
	postAll(a.p, a.others)(t)
}

// postAll posts requests with new contents. The returned function waits for them and compares.
func postAll(p *pairOf, list []*other) func(*testing.T) {
	var posted []nixlapi.Status
	for _, o := range list {
		o.seed += 2
		o.src.Fill(o.seed)
		o.dst.Fill(o.seed + 1)
		posted = append(posted, o.x.Post())
	}
	return func(t *testing.T) {
		t.Helper()
		for i, o := range list {
			if posted[i] == nixlapi.InProgress {
				posted[i] = o.x.Wait(limit)
			}
			require.Equal(t, nixlapi.Success, posted[i], "other %d\n%s\n%s", i, p.ini.Output(), p.tgt.Output())
			o.dst.Want(o.seed)
			o.src.Want(o.seed)
		}
	}
}
