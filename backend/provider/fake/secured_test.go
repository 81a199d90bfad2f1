package fake

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/access"
	"gorail/backend/provider"
	"gorail/backend/provider/fake/drive"
	"gorail/backend/trust"
)

// securityOf is an end's knowledge of a link in that epoch of a session.
func securityOf(session byte, initiator bool, epoch uint32) provider.Security {
	secret := trust.Secret{session}
	return provider.Security{Initiator: initiator, Keys: secret.KeySalt(), Link: func(t trust.Ticket) *trust.LinkSecret {
		return secret.Link(trust.LinkName{Epoch: epoch, Ticket: t})
	}}
}

// Ends of one link and epoch talk, and others do not. A key opens a region only at an endpoint of its session.
func TestSecured(t *testing.T) {
	for name, c := range map[string]struct {
		a, b provider.Security
		keys [16]byte
		want syscall.Errno
	}{
		"one link":              {securityOf(1, true, 0), securityOf(1, false, 0), securityOf(1, false, 0).Keys, 0},
		"another epoch":         {securityOf(1, true, 1), securityOf(1, false, 0), securityOf(1, false, 0).Keys, syscall.EPERM},
		"another session":       {securityOf(1, true, 0), securityOf(2, false, 0), securityOf(1, false, 0).Keys, syscall.EPERM},
		"two initiators":        {securityOf(1, true, 0), securityOf(1, true, 0), securityOf(1, false, 0).Keys, syscall.EPERM},
		"another session's key": {securityOf(1, true, 0), securityOf(1, false, 0), securityOf(2, false, 0).Keys, syscall.EACCES},
	} {
		t.Run(name, func(t *testing.T) {
			f := NewFabric(3)
			var ends [2]*end
			for i := range ends {
				r, err := f.Provider().Open(provider.Device{Name: "fake0", Opaque: Link{Name: "fake0", Caps: SecuredCaps()}})
				require.NoError(t, err)
				e := &end{rail: r.(*Rail), d: drive.New(r.Core()), mem: drive.Alloc(4096)}
				e.ep, err = r.OpenEndpoint()
				require.NoError(t, err)
				e.mr, err = r.Register(drive.Addr(e.mem), 4096, uint64(i)+1, access.Both)
				require.NoError(t, err)
				ends[i] = e
			}
			a, b := ends[0], ends[1]
			require.ErrorContains(t, a.ep.Connect(b.ep.Addr()), "after 0 calls of Secure")
			a.ep.(provider.Secured).Secure(c.a)
			b.ep.(provider.Secured).Secure(c.b)
			require.NoError(t, a.ep.Connect(b.ep.Addr()))
			a.mem[0] = 1
			require.NoError(t, a.d.RMA(a.ep.Core(), drive.Write, 7, drive.Seg{Local: drive.Addr(a.mem), Len: 8, Key: b.mr.(provider.Keyed).KeyFor(c.keys)}))
			require.Zero(t, a.poll(t), "the peer has not connected")
			require.NoError(t, b.ep.Connect(a.ep.Addr()))
			require.True(t, a.d.Readable())
			require.Equal(t, 1, a.poll(t))
			require.Equal(t, []drive.Comp{{ID: 7, Err: c.want}}, a.got)
			require.Equal(t, c.want == 0, b.mem[0] == 1)
			for _, e := range ends {
				require.NoError(t, e.ep.Close())
				require.NoError(t, e.mr.Close())
				require.NoError(t, e.rail.Close())
			}
			require.NoError(t, f.Close())
		})
	}
}
