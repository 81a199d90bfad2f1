package wire

import (
	"bytes"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gorail/backend/access"
)

// number draws the next number: small, large, or close to the previous one.
func number(t *rapid.T, last uint64, name string) uint64 {
	return rapid.OneOf(rapid.Just(last), rapid.Just(last+1), rapid.Uint64Range(0, 300), rapid.Uint64(),
		rapid.Just(uint64(math.MaxUint64))).Draw(t, name)
}

// same checks that a frame decodes to what was encoded.
func same(t require.TestingT, f Frame) {
	data, err := AppendFrame(nil, f)
	require.NoError(t, err)
	got, err := ReadFrame(bytes.NewReader(data), 0)
	require.NoError(t, err)
	require.Equal(t, f, got)
}

func TestPackedRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys, req := &Keys{ID: rapid.Uint64().Draw(t, "id"), Entries: KeyEntries{}}, &KeysReq{Ranges: Claims{}}
		e, r := KeyEntry{}, Claim{}
		for range rapid.IntRange(0, 12).Draw(t, "n") {
			r.Range = Range{Addr: number(t, r.Addr+r.Len, "addr"), Len: number(t, r.Len, "len"), Dev: number(t, r.Dev, "dev"),
				Mem: rapid.Int32().Draw(t, "mem")}
			r.Cap[15] = byte(rapid.IntRange(0, 2).Draw(t, "cap"))
			r.Len = min(r.Len, math.MaxUint64-r.Addr)
			req.Ranges = append(req.Ranges, r)
			if rapid.IntRange(0, 5).Draw(t, "unknown") == 0 {
				keys.Entries = append(keys.Entries, KeyEntry{Rails: []RailKey{}})
				continue
			}
			region := number(t, e.Region, "region")
			gen := uint32(number(t, region>>32, "gen"))
			set := number(t, 0, "rails")
			if rapid.Bool().Draw(t, "same rails") {
				set = 0
				for _, k := range e.Rails {
					set |= 1 << k.Rail
				}
			}
			last := e
			e = KeyEntry{Known: true, Region: region, Gen: gen, Access: access.Rights(rapid.IntRange(0, int(access.Both)).Draw(t, "access")), Rails: []RailKey{}}
			for k := range uint8(MaxKeyRails) {
				if set&(1<<k) == 0 {
					continue
				}
				rk := RailKey{Rail: k}
				for _, o := range last.Rails {
					if o.Rail == k {
						rk = o
					}
				}
				rk.Key, rk.Base = number(t, rk.Key, "key"), number(t, rk.Base, "base")
				e.Rails = append(e.Rails, rk)
			}
			keys.Entries = append(keys.Entries, e)
		}
		same(t, keys)
		same(t, req)
	})
}

// TestPackedBounds: a decoded frame stays within the limits, whatever its bytes claim.
func TestPackedBounds(t *testing.T) {
	keys := make([]byte, 4*MaxKeyRails)
	head := []byte{entryKnown | entryRails, 0} // all rails, with unchanged bases
	body := append(append(head, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1), append(keys, 0)...)
	for range MaxRanges - 1 {
		body = append(append(body, entryKnown, 0), append(keys, 0)...)
	}
	packed := func(b []byte) []byte {
		data, err := encMode.Marshal(b)
		require.NoError(t, err)
		return data
	}
	var before, after runtime.MemStats
	var got KeyEntries
	runtime.ReadMemStats(&before)
	require.NoError(t, got.UnmarshalCBOR(packed(body)))
	runtime.ReadMemStats(&after)
	require.Len(t, got, MaxRanges)
	require.Len(t, got[MaxRanges-1].Rails, MaxKeyRails)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20+4*len(body)))

	require.ErrorIs(t, got.UnmarshalCBOR(packed(append(append(body, entryKnown, 0), append(keys, 0)...))), ErrLimit)
	require.ErrorIs(t, new(Claims).UnmarshalCBOR(packed(bytes.Repeat([]byte{rangeFlags, 0}, MaxRanges+1))), ErrLimit)
	for name, b := range map[string][]byte{
		"unknown flag":     {entryFlags + 1},
		"cut short":        {entryKnown | entryRails, 0, 1, 0},
		"key cut short":    {entryKnown | entryRails | entryWide, 0, 1, 0, 0, 0, 0, 0, 0, 0},
		"endless number":   bytes.Repeat([]byte{0xff}, 12),
		"number too large": {entryKnown, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0},
	} {
		require.ErrorIs(t, new(KeyEntries).UnmarshalCBOR(packed(b)), ErrFormat, name)
	}
	for name, b := range map[string][]byte{
		"keys of an unknown region": {entryRails},
		"the same rails again":      {entryKnown | entryRails, 0, 0},
		"bases one by one":          {entryKnown | entryBaseEach | entryRails, 0, 1, 2, 0, 0, 0, 0},
		"a wide key that is none":   {entryKnown | entryWide | entryRails, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0},
		"long form":                 {entryKnown, 0x80, 0},
	} {
		body := append([]byte{0x82, 1}, packed(b)...)
		_, err := ReadFrame(frame(TypeKeys, uint32(len(body)), body), 0)
		require.ErrorIs(t, err, ErrFormat, name)
	}
}
