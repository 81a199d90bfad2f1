// Package conform tests the part of package provider's contract that every provider keeps. The same tests run on the
// fake fabric and on real ones.
package conform

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/trust"
	"gorail/test/drive"
)

// side is a rail with an endpoint, a region and its completions.
type side struct {
	t      *testing.T
	rail   provider.Rail
	traits Traits
	ep     provider.Endpoint
	d      drive.Rail
	mem    []byte
	mr     provider.MR
	done   map[uint64]drive.Comp
}

// Traits are properties of a rail beyond its Caps.
type Traits struct {
	DeliveryComplete bool // a completion proves placement at the target
	VirtAddr         bool // remote addresses are virtual addresses; else offsets from the region's start
	AnyAccess        bool // the access of peers is not enforced: peers copy by themselves
	WriteReads       bool // who may WRITE may READ, too: WRITEs are proved by a READ
	Numbered         bool // remote addresses begin with the number of the region
}

// TraitsOf returns the traits of an open rail.
type TraitsOf func(provider.Rail) Traits

// Is returns the same traits for every rail.
func Is(t Traits) TraitsOf { return func(provider.Rail) Traits { return t } }

// Opener opens a rail for one of two sides. It skips the test if there is no device.
type Opener func(t *testing.T) provider.Rail

func newSide(t *testing.T, of TraitsOf, open Opener, number uint64) *side {
	t.Helper()
	rail := open(t)
	var err error
	s := &side{t: t, rail: rail, traits: of(rail), d: drive.New(rail.Core()), mem: drive.Alloc(8 << 20), done: map[uint64]drive.Comp{}}
	s.ep, err = rail.OpenEndpoint()
	require.NoError(t, err)
	s.mr, err = rail.Register(drive.Addr(s.mem), uint64(len(s.mem)), number, option.PeersBoth)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.ep.Close())
		require.NoError(t, s.mr.Close())
		require.NoError(t, rail.Close())
	})
	return s
}

// pair returns two connected rails in this process.
func pair(t *testing.T, of TraitsOf, open Opener) (a, b *side) {
	a, b = newSide(t, of, open, 11), newSide(t, of, open, 22)
	connect(t, a, b)
	return a, b
}

// salt is that of the keys of all sessions here.
var salt = [16]byte{5}

// secure gives an endpoint the secrets that all endpoints here have, if it wants any.
func secure(ep provider.Endpoint, initiator bool) {
	if s, ok := ep.(provider.Listener); ok {
		link := func(k trust.Ticket) *trust.LinkSecret {
			return (&trust.Secret{7}).Link(trust.LinkName{Fabric: "conform", Ticket: k})
		}
		s.Secure(provider.Security{Initiator: initiator, Link: link, Keys: salt})
	}
}

// connect connects the sides' endpoints. The first dials, if one must.
func connect(t *testing.T, a, b *side) {
	t.Helper()
	join(t, a.ep, b.ep)
}

func join(t *testing.T, a, b provider.Endpoint) {
	t.Helper()
	secure(a, true)
	secure(b, false)
	require.NoError(t, a.Connect(b.Addr()))
	require.NoError(t, b.Connect(a.Addr()))
}

// key is the key of a region for peers.
func key(m provider.MR) uint64 {
	return m.Key(salt)
}

func (s *side) poll() {
	comps, err := s.d.Poll(16)
	require.NoError(s.t, err)
	for _, c := range comps {
		_, twice := s.done[c.ID]
		require.False(s.t, twice, "%d completed twice", c.ID)
		s.done[c.ID] = c
	}
}

// until polls both sides until ok returns true, for at most 10 s.
func until(a, b *side, ok func() bool) bool {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		a.poll()
		b.poll()
		if ok() {
			return true
		}
	}
	return false
}

func (s *side) post(peer *side, f func() error) {
	s.t.Helper()
	require.True(s.t, until(s, peer, func() bool {
		err := f()
		if err != nil {
			require.ErrorIs(s.t, err, syscall.EAGAIN)
		}
		return err == nil
	}), "EAGAIN for 10 s")
}

func (s *side) seg(peer *side, local, remote, n int) drive.Seg {
	return drive.Seg{Local: drive.Addr(s.mem) + uint64(local), Remote: peer.mr.Base() + uint64(remote), Len: uint64(n),
		Desc: s.mr.Desc(), Key: key(peer.mr)}
}

// atMost is n, or what one work request may have if that is less.
func (s *side) atMost(n uint64) int { return int(min(n, s.rail.Caps().MaxMsg)) }

func (s *side) rma(peer *side, op int, id uint64, segs ...drive.Seg) {
	s.t.Helper()
	s.post(peer, func() error { return s.d.RMA(s.ep.Core(), op, id, segs...) })
}

func (s *side) has(ids ...uint64) func() bool {
	return func() bool {
		for _, id := range ids {
			if _, ok := s.done[id]; !ok {
				return false
			}
		}
		return true
	}
}

func random(b []byte) {
	_, _ = rand.NewChaCha8([32]byte{1, byte(len(b)), byte(len(b) >> 8), byte(len(b) >> 16)}).Read(b) // reading byte by byte takes seconds under the race detector
}
