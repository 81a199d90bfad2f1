package engine

import (
	"context"
	"crypto/tls"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/trust"
)

// Devices that cannot encrypt are refused with encryption=on, unless their network is trusted. Shared memory never leaves the host.
func TestDevicesInClear(t *testing.T) {
	t.Parallel()
	verbs, efa := provider.Device{Fabric: "verbs", Name: "mlx5_0"}, provider.Device{Fabric: "efa", Name: "rdmap0"}
	tcp, here := provider.Device{Fabric: "tcp", Name: "eth0", Encrypts: true}, provider.Device{Fabric: "sm", Name: "memory", Host: true}
	for name, c := range map[string]struct {
		params map[string]string
		found  []provider.Device
		says   string
	}{
		"off":          {nil, []provider.Device{verbs, here}, ""},
		"tcp":          {map[string]string{"encryption": "on"}, []provider.Device{tcp, here}, ""},
		"verbs":        {map[string]string{"encryption": "on"}, []provider.Device{verbs, here}, "verbs/mlx5_0"},
		"all":          {map[string]string{"encryption": "on"}, []provider.Device{tcp, efa, verbs, here}, "efa/rdmap0, verbs/mlx5_0"},
		"trusted":      {map[string]string{"encryption": "on", "rdma": "trusted"}, []provider.Device{tcp, efa, verbs, here}, ""},
		"trusted, off": {map[string]string{"rdma": "trusted"}, []provider.Device{verbs}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o, _, err := option.Parse(c.params, nil)
			require.NoError(t, err)
			err = inClear(&o, c.found)
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, provider.ErrUnusable)
			for _, part := range []string{c.says + ";", "encryption=on", "provider=tcp,sm", "rdma=trusted"} {
				require.ErrorContains(t, err, part)
			}
		})
	}
}

// With encryption of data the control channel's keys resist quantum computers, too.
func TestPostQuantumControl(t *testing.T) {
	t.Parallel()
	for quantum, want := range map[bool]tls.CurveID{true: tls.X25519MLKEM768, false: tls.X25519} {
		var keys [2]*trust.Key
		for i := range keys {
			k, err := trust.NewKey()
			require.NoError(t, err)
			k.PostQuantum = quantum
			keys[i] = k
		}
		a, b := net.Pipe()
		client, server := tls.Client(a, keys[0].Client(keys[1].Pin)), tls.Server(b, keys[1].Server())
		done := make(chan error, 1)
		go func() { done <- server.HandshakeContext(context.Background()) }()
		require.NoError(t, client.HandshakeContext(context.Background()))
		require.NoError(t, <-done)
		require.Equal(t, want, client.ConnectionState().CurveID)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
}
