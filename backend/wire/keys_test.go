package wire

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gorail/backend/option"
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
			e = KeyEntry{Known: true, Region: region, Gen: gen, Access: option.Rights(rapid.IntRange(0, int(option.PeersBoth)).Draw(t, "access")), Rails: []RailKey{}}
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

func TestSlices(t *testing.T) {
	const size = 3584 << 20
	r := Range{Addr: 0x7f00_0012_3456, Len: 10 << 30, Dev: 1, Mem: 2}
	slices := func() []Range {
		list, err := r.Slices(size)
		require.NoError(t, err)
		return list
	}
	list := slices()
	require.Len(t, list, 3)
	assert.Equal(t, Range{Addr: r.Addr, Len: 0x7f00_0000_0000 + size - r.Addr, Dev: 1, Mem: 2}, list[0])
	one, err := r.Slices(0)
	require.NoError(t, err)
	assert.Equal(t, []Range{r}, one)
	r.Len = size
	assert.Equal(t, []Range{r}, slices(), "the limit itself is one")
	r.Addr = 2 // so that the last slice has a byte
	r.Len = (MaxSlices - 1) * size
	_, err = r.Slices(size)
	assert.ErrorIs(t, err, ErrLimit)
	r.Len--
	assert.Equal(t, MaxSlices, len(slices()))
	r.Len = math.MaxUint64 - 1
	_, err = r.Slices(MinSlice)
	assert.ErrorIs(t, err, ErrLimit)
}

// TestSlicesProperties: every byte is in one slice, no slice is too large, all but the first begin on a page, and
// SliceOf finds the slice.
func TestSlicesProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Uint64Range(MinSlice/SliceUnit, 100).Draw(t, "size") * SliceUnit
		r := Range{Addr: rapid.Uint64Range(0, math.MaxUint64-1<<30).Draw(t, "addr"), Len: rapid.Uint64Range(0, 30*size).Draw(t, "len")}
		list, err := r.Slices(size)
		require.NoError(t, err)
		at := r.Addr
		for i, s := range list {
			require.Equal(t, at, s.Addr)
			require.LessOrEqual(t, s.Len, size)
			again, err := s.Slices(size)
			require.NoError(t, err)
			require.Equal(t, []Range{s}, again, "a slice is not sliced again")
			if i > 0 {
				require.Zero(t, s.Addr%SliceUnit)
				require.NotZero(t, s.Len)
			}
			if len(list) > 1 {
				require.Equal(t, i, r.SliceOf(s.Addr, size))
				require.Equal(t, i, r.SliceOf(s.Addr+s.Len-1, size))
			}
			at += s.Len
		}
		require.Equal(t, r.Addr+r.Len, at)
		if len(list) > 1 {
			require.Equal(t, len(list)-1, r.SliceOf(at, size), "the end is in the last")
		}
	})
}

// TestPagesNameVersion compares the pages that name the wire version with Version.
func TestPagesNameVersion(t *testing.T) {
	t.Parallel()
	for path, patterns := range map[string][]string{
		"../../README.md": {`the same protocol version \(now (\d+)\)`},
		"../../docs/upgrade.md": {
			`both blobs in NIXL's metadata\. It is (\d+) now`,
			`blob version \d+, here (\d+)"`,
			"`the peer has control protocol (\\d+), this side \\d+`",
			"`the initiator has control protocol \\d+, the target (\\d+): ",
			`(?m)^## This version: .*, wire version (\d+)$`,
		},
	} {
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, pattern := range patterns {
			m := regexp.MustCompile(pattern).FindSubmatch(page)
			require.NotNil(t, m, "%s does not have the words %s", path, pattern)
			require.Equal(t, strconv.Itoa(Version), string(m[1]), "%s: %s", path, pattern)
		}
	}
}
