package engine

import (
	"io"
	"net"
	"slices"
	"sync"

	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// gate is a proxy for the control connections to an agent. A shut gate accepts connections and forwards nothing. A gate that is
// shut in one direction forwards the other. The gate can also break the connections.
type gate struct {
	ln   net.Listener
	blob []byte // the agent's connection blob, with the gate's address

	mu     sync.Mutex
	cond   *sync.Cond
	target string
	shut   [2]bool // by direction
	over   bool
	conns  []net.Conn
	wg     sync.WaitGroup
}

// Directions of a gate.
const (
	toInitiator = iota
	toTarget
)

// gate makes a shut gate before the agent.
func (h *harness) gate(a *agent) *gate {
	h.Helper()
	g := &gate{shut: [2]bool{true, true}}
	g.cond = sync.NewCond(&g.mu)
	var err error
	g.ln, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(h, err)
	g.leadTo(h, a)
	g.accept()
	h.Cleanup(g.end)
	return g
}

// leadTo sets the agent that new connections lead to.
func (g *gate) leadTo(h *harness, a *agent) {
	h.Helper()
	blob, err := wire.DecodeConn(a.Conn())
	require.NoError(h, err)
	g.mu.Lock()
	g.target = blob.Control[0]
	g.mu.Unlock()
	blob.Control = []string{g.ln.Addr().String()}
	g.blob, err = blob.Encode()
	require.NoError(h, err)
}

func (g *gate) accept() {
	ln := g.ln
	g.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			g.wg.Go(func() { g.serve(c) })
		}
	})
}

// kill breaks all connections and refuses new ones, as the death of the process does. revive accepts connections again.
func (g *gate) kill() {
	g.ln.Close()
	g.cut()
	g.wg.Wait()
}

func (g *gate) revive(h *harness) {
	h.Helper()
	var err error
	g.ln, err = net.Listen("tcp", g.ln.Addr().String())
	require.NoError(h, err)
	g.accept()
}

// end closes the gate. It may be called again.
func (g *gate) end() {
	g.mu.Lock()
	g.over = true
	g.cond.Broadcast()
	g.mu.Unlock()
	g.ln.Close()
	g.cut()
	g.wg.Wait()
}

func (g *gate) serve(near net.Conn) {
	g.keep(near)
	defer near.Close()
	if !g.pass(toInitiator, toTarget) {
		return
	}
	g.mu.Lock()
	target := g.target
	g.mu.Unlock()
	far, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	g.keep(far)
	g.wg.Go(func() { g.copy(near, far, toInitiator) })
	g.copy(far, near, toTarget)
}

func (g *gate) copy(to, from net.Conn, direction int) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !g.pass(direction) {
			return
		}
		if _, werr := to.Write(buf[:n]); werr != nil || err == io.EOF || err != nil {
			return
		}
	}
}

// pass waits until one of the directions is open. false: the gate is closed for good.
func (g *gate) pass(directions ...int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !slices.ContainsFunc(directions, func(d int) bool { return !g.shut[d] }) && !g.over {
		g.cond.Wait()
	}
	return !g.over
}

func (g *gate) keep(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns = append(g.conns, c)
	if g.over {
		c.Close()
	}
}

// open opens or shuts both directions.
func (g *gate) open(yes bool) {
	g.openOne(toInitiator, yes)
	g.openOne(toTarget, yes)
}

func (g *gate) openOne(direction int, yes bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut[direction] = !yes
	g.cond.Broadcast()
}

// cut breaks all connections.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.conns {
		c.Close()
	}
	g.conns = nil
}
