package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMacs: any change of the input changes the MAC.
func TestMacs(t *testing.T) {
	seen := map[Mac]string{}
	note := func(what string, m Mac, err error) {
		require.NoError(t, err)
		assert.Empty(t, seen[m], what)
		seen[m] = what
	}
	token, challenge := Token{1}, Nonce{2}
	hello := func(change func(*Hello)) *Hello {
		h := &Hello{Version: 1, Nonce: Nonce{3}, Engine: EngineID{4}, Target: EngineID{5}, Agent: "a", Offers: []EndpointOffer{{Rail: 1}}}
		change(h)
		return h
	}
	mac := func(what string, token Token, challenge Nonce, change func(*Hello)) {
		m, err := MacHello(token, challenge, hello(change))
		note(what, m, err)
	}
	same := func(*Hello) {}
	mac("plain", token, challenge, same)
	mac("token", Token{9}, challenge, same)
	mac("challenge", token, Nonce{9}, same)
	mac("nonce", token, challenge, func(h *Hello) { h.Nonce = Nonce{9} })
	mac("engine", token, challenge, func(h *Hello) { h.Engine = EngineID{9} })
	mac("target", token, challenge, func(h *Hello) { h.Target = EngineID{9} })
	mac("agent", token, challenge, func(h *Hello) { h.Agent = "b" })
	mac("session", token, challenge, func(h *Hello) { h.Session = 9 })
	mac("offer", token, challenge, func(h *Hello) { h.Offers[0].Addr = []byte("x") })
	w := &Welcome{Version: 1}
	m, err := MacWelcome(token, challenge, Nonce{3}, w)
	note("welcome", m, err)
	m, err = MacWelcome(token, challenge, Nonce{9}, w)
	note("welcome nonce", m, err)
	m, err = MacWelcome(token, challenge, Nonce{3}, &Welcome{Version: 1, Session: 1})
	note("welcome session", m, err)

	resume := func(what string, token Token, challenge Nonce, change func(*Resume)) {
		r := &Resume{Version: 1, Nonce: Nonce{3}, Engine: EngineID{4}, Target: EngineID{5}}
		change(r)
		m, err := MacResume(token, challenge, r)
		note("resume "+what, m, err)
		r.Mac = m
		again, err := MacResume(token, challenge, r)
		require.NoError(t, err)
		assert.Equal(t, m, again, "the Mac field itself isn't covered")
	}
	resume("plain", token, challenge, func(*Resume) {})
	resume("token", Token{9}, challenge, func(*Resume) {})
	resume("challenge", token, Nonce{9}, func(*Resume) {})
	resume("nonce", token, challenge, func(r *Resume) { r.Nonce = Nonce{9} })
	resume("engine", token, challenge, func(r *Resume) { r.Engine = EngineID{9} })
	resume("target", token, challenge, func(r *Resume) { r.Target = EngineID{9} })
	resume("session", token, challenge, func(r *Resume) { r.Session = 9 })
	resume("proof", token, challenge, func(r *Resume) { r.Proof = Mac{9} })
	resume("try", token, challenge, func(r *Resume) { r.Try = 9 })
	resume("got", token, challenge, func(r *Resume) { r.Got = 9 })
	for what, r := range map[string]*Resumed{"resumed": {Version: 1}, "resumed session": {Version: 1, Session: 1}, "resumed got": {Version: 1, Got: 1}} {
		m, err := MacResumed(token, challenge, Nonce{3}, r)
		note(what, m, err)
		m, err = MacResumed(token, challenge, Nonce{9}, r)
		note(what+", another nonce", m, err)
	}

	h := hello(same)
	h.Mac, err = MacHello(token, challenge, h)
	require.NoError(t, err)
	again, err := MacHello(token, challenge, h)
	require.NoError(t, err)
	assert.True(t, h.Mac.Equal(again), "the Mac field itself isn't covered")
	assert.False(t, h.Mac.Equal(m))
	_, err = MacHello(token, challenge, &Hello{Offers: make([]EndpointOffer, MaxRails+1)})
	assert.ErrorIs(t, err, ErrLimit)
}
