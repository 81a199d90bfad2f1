package wire

import (
	"bytes"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// number draws what comes: small ones, large ones, and those beside the one before.
func number(t *rapid.T, last uint64, name string) uint64 {
	return rapid.OneOf(rapid.Just(last), rapid.Just(last+1), rapid.Uint64Range(0, 300), rapid.Uint64(),
		rapid.Just(uint64(math.MaxUint64))).Draw(t, name)
}

// size is a frame's whole length.
func size(t require.TestingT, f Frame) int {
	data, err := AppendFrame(nil, f)
	require.NoError(t, err)
	return len(data)
}

// same says that a frame comes back as it was.
func same(t require.TestingT, f Frame) {
	data, err := AppendFrame(nil, f)
	require.NoError(t, err)
	got, err := ReadFrame(bytes.NewReader(data), 0)
	require.NoError(t, err)
	require.Equal(t, f, got)
}

func TestPackedRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys, req := &Keys{ID: rapid.Uint64().Draw(t, "id"), Entries: KeyEntries{}}, &KeysReq{Ranges: Ranges{}}
		e, r := KeyEntry{}, Range{}
		for range rapid.IntRange(0, 12).Draw(t, "n") {
			r = Range{Addr: number(t, r.Addr+r.Len, "addr"), Len: number(t, r.Len, "len"), Dev: number(t, r.Dev, "dev"),
				Mem: rapid.Int32().Draw(t, "mem")}
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
			e = KeyEntry{Known: true, Region: region, Gen: gen, Rails: []RailKey{}}
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

// stepped are the keys of regions registered one after the other on many rails, as they come.
func stepped(rails int) *Keys {
	keys := &Keys{ID: 1}
	for i := range uint64(MaxRanges) {
		e := KeyEntry{Known: true, Region: 1<<32 + i, Gen: 1}
		for k := range uint64(rails) {
			e.Rails = append(e.Rails, RailKey{Rail: uint8(k), Key: (k+1)*0x9e3779b97f4a7c15 + i, Base: 0x7f0000000000 + i<<20})
		}
		keys.Entries = append(keys.Entries, e)
	}
	return keys
}

// TestPackedSize: 32 rails cost hardly more than one where their keys go in step, and no more than their numbers where not.
func TestPackedSize(t *testing.T) {
	one, many := stepped(1), stepped(32)
	assert.Less(t, size(t, one), 8*MaxRanges)
	assert.Less(t, size(t, many), 9*MaxRanges)
	same(t, many)
	many.Entries[MaxRanges/2].Rails[17].Key = 5
	many.Entries[MaxRanges/4].Rails = many.Entries[MaxRanges/4].Rails[1:]
	assert.Less(t, size(t, many), 12*MaxRanges, "two that are out of step cost little")
	same(t, many)

	req := &KeysReq{}
	for i := range uint64(MaxRanges) {
		req.Ranges = append(req.Ranges, Range{Addr: 0x7f0000000000 + i<<20, Len: 1 << 20})
	}
	assert.Less(t, size(t, req), 3*MaxRanges)
	same(t, req)
}

// TestPackedBounds: a few bytes a region give no more memory than a frame's worth, and nothing gets past the limits.
func TestPackedBounds(t *testing.T) {
	head := []byte{entryKnown | entryRails, 0} // all rails, of which the keys and bases change by nothing
	body := append(head, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 0)
	for range MaxRanges - 1 {
		body = append(body, entryKnown, 0, 0, 0)
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
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))

	require.ErrorIs(t, got.UnmarshalCBOR(packed(append(body, entryKnown, 0, 0, 0))), ErrLimit)
	require.ErrorIs(t, new(Ranges).UnmarshalCBOR(packed(bytes.Repeat([]byte{3, 0}, MaxRanges+1))), ErrLimit)
	for name, b := range map[string][]byte{
		"unknown flag":     {entryFlags + 1},
		"cut short":        {entryKnown | entryRails, 0, 1, 0},
		"endless number":   bytes.Repeat([]byte{0xff}, 12),
		"number too large": {entryKnown, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0},
	} {
		require.ErrorIs(t, new(KeyEntries).UnmarshalCBOR(packed(b)), ErrFormat, name)
	}
	for name, b := range map[string][]byte{
		"keys of an unknown region": {entryRails},
		"the same rails again":      {entryKnown | entryRails, 0, 0},
		"rails one by one":          {entryKnown | entryKeyEach | entryRails, 0, 1, 2, 0},
		"long form":                 {entryKnown, 0x80, 0},
	} {
		body := append([]byte{0x82, 1}, packed(b)...)
		_, err := ReadFrame(frame(TypeKeys, uint32(len(body)), body), 0)
		require.ErrorIs(t, err, ErrFormat, name)
	}
}

func BenchmarkKeysFrame(b *testing.B) {
	keys := stepped(32)
	b.Run("encode", func(b *testing.B) {
		for b.Loop() {
			_, _ = AppendFrame(nil, keys)
		}
	})
	b.Run("decode", func(b *testing.B) {
		data, _ := AppendFrame(nil, keys)
		for b.Loop() {
			_, _ = ReadFrame(bytes.NewReader(data), 0)
		}
	})
}
