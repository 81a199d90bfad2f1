package wire

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A capability is a pure function of the secret and of every field of the range.
func TestCap(t *testing.T) {
	key := CapSecret{1}
	secret := key.Maker()
	r := Range{Addr: 1 << 40, Len: 4096, Dev: 2, Mem: 1}
	c := secret.Claim(r)
	require.Equal(t, r, c.Range)
	require.Equal(t, c, secret.Claim(r))
	require.True(t, c.Cap.Equal(secret.Claim(r).Cap))
	// printf ADDR LEN DEV MEM, 8 bytes each | openssl mac -cipher AES-256-CBC -macopt hexkey:0100... CMAC
	// The subkey of the second secret needs the reduction, that of the first does not.
	require.Equal(t, "c35bad410d4b44129da5689a59481808", hex.EncodeToString(c.Cap[:]))
	other := CapSecret{3}.Maker().Claim(r).Cap
	require.Equal(t, "2f0257c51647e3d98492ddcf6eb3bac2", hex.EncodeToString(other[:]))
	seen := map[Cap]bool{c.Cap: true, {}: true}
	for _, other := range []Range{{Addr: r.Addr + 1, Len: r.Len, Dev: 2, Mem: 1}, {Addr: r.Addr, Len: r.Len - 1, Dev: 2, Mem: 1},
		{Addr: r.Addr, Len: r.Len, Dev: 3, Mem: 1}, {Addr: r.Addr, Len: r.Len, Dev: 2}, {Addr: r.Len, Len: r.Addr, Dev: 2, Mem: 1}, {}} {
		o := secret.Claim(other).Cap
		require.False(t, seen[o], other)
		require.False(t, c.Cap.Equal(o), other)
		seen[o] = true
	}
	require.False(t, seen[CapSecret{2}.Maker().Claim(r).Cap])
	for i := range c.Cap { // every byte counts
		bad := c.Cap
		bad[i] ^= 0x80
		require.False(t, c.Cap.Equal(bad))
	}
	require.Equal(t, "(capability) (capability) (secret) (secret)", fmt.Sprintf("%v %#v %v %#v", c.Cap, c.Cap, key, key))
}

// TestClaimsStrict: a list has one encoding, and a capability is whole.
func TestClaimsStrict(t *testing.T) {
	packed := func(b []byte) []byte {
		data, err := encMode.Marshal(b)
		require.NoError(t, err)
		return data
	}
	for name, b := range map[string][]byte{
		"unknown flag": {rangeFlags + 1, 0},
		"cut short":    append([]byte{rangeSameLen | rangeSameKind, 0}, make([]byte, 15)...),
	} {
		require.ErrorIs(t, new(Claims).UnmarshalCBOR(packed(b)), ErrFormat, name)
	}
	one := append([]byte{rangeSameLen | rangeSameKind, 0}, bytes.Repeat([]byte{7}, 16)...)
	again := append(one, one...)
	body := append([]byte{0x82, 1}, packed(again)...)
	_, err := ReadFrame(frame(TypeKeysReq, uint32(len(body)), body), 0)
	require.ErrorIs(t, err, ErrFormat, "the same capability again")
}
