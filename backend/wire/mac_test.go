package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMacs: whatever is changed, the MAC is another.
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
