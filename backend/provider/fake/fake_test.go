package fake

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/provider/fake/conform"
)

// opener opens rails with these caps on one new fabric.
func opener(t *testing.T, caps Caps, script Script) conform.Opener {
	f := NewFabric(1)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return func(t *testing.T) provider.Rail {
		p := f.Provider(Link{Name: "x", Caps: caps})
		devs, err := p.Discover(context.Background(), provider.Filter{})
		require.NoError(t, err)
		r, err := p.Open(devs[0])
		require.NoError(t, err)
		p.Rail("x").Script(script)
		return r
	}
}

func traits(c Caps) conform.TraitsOf {
	return conform.Is(conform.Traits{DeliveryComplete: c.DeliveryComplete, VirtAddr: c.VirtAddr})
}

// The fake fabric keeps the contract of real providers, with and without scripted misbehaviour.
func TestConform(t *testing.T) {
	secured := SecuredCaps()
	secured.ProviderKeys = true // peers don't see the keys that the caller chooses
	for name, caps := range map[string]Caps{"tcp": TCPCaps(), "efa": EFACaps(), "verbs": VerbsCaps(), "secured": secured} {
		t.Run(name, func(t *testing.T) { conform.Run(t, traits(caps), opener(t, caps, Script{})) })
	}
	t.Run("delayed", func(t *testing.T) {
		conform.Run(t, traits(TCPCaps()), opener(t, TCPCaps(), Script{Delay: 3, EagainEvery: 3}))
	})
	t.Run("slow", func(t *testing.T) {
		conform.Run(t, traits(TCPCaps()), opener(t, TCPCaps(), Script{PerPoll: 1, BadKeyCancels: true}))
	})
}
