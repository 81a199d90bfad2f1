package rails_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gorail/backend/rails"
	"gorail/backend/wire"
)

// knows says what is known: '+' works, '-' apart, anything else nothing. A line for each rail of ours, a letter for each of the peer's.
func knows(lines ...string) rails.Known {
	return func(own, peer int) rails.Reach {
		switch {
		case own >= len(lines) || peer >= len(lines[own]):
			return rails.Unknown
		case lines[own][peer] == '+':
			return rails.Works
		case lines[own][peer] == '-':
			return rails.Apart
		}
		return rails.Unknown
	}
}

func TestMatchKnown(t *testing.T) {
	const three = "net/a net/a net/a"
	for name, c := range map[string]struct {
		own, peer string
		known     rails.Known
		want      []rails.Pair
	}{
		"nothing apart":       {three, three, knows("+..", "...", "..+"), []rails.Pair{{0, 0}, {2, 2}, {1, 1}}},
		"one apart":           {three, three, knows("...", ".-.", "..."), []rails.Pair{{0, 0}, {1, 2}, {2, 1}}},
		"one works":           {three, three, knows("+..", ".-.", "..+"), []rails.Pair{{0, 0}, {2, 2}, {0, 1}, {1, 0}}},
		"crossed":             {three, three, knows("-+.", "--+", "+.-"), []rails.Pair{{0, 1}, {1, 2}, {2, 0}}},
		"all the others":      {three, three, knows("-..", ".-.", "..-"), []rails.Pair{{0, 1}, {1, 2}, {2, 0}}},
		"broken":              {three, three, knows("+.-", ".+-", "---"), []rails.Pair{{0, 0}, {1, 1}, {2, 2}}},
		"no partner for one":  {three, "net/a net/a", knows("+-", "--", "-+"), []rails.Pair{{0, 0}, {2, 1}}},
		"a second to share":   {three, "net/a net/a", knows("-+", "+-", "-."), []rails.Pair{{0, 1}, {1, 0}, {2, 1}}},
		"works before faster": {"net/a/10 net/a/400", "net/a/10 net/a/400", knows("-+", "..-"), []rails.Pair{{0, 1}, {1, 0}}},
	} {
		require.Equal(t, c.want, rails.Match(side(c.own), rails.Offers(side(c.peer)), false, c.known), name)
		require.Equal(t, c.want, rails.Between(side(c.own), rails.Offers(side(c.peer)), 7, 7, c.known), name)
	}
	alike := rails.Offers(side(three))
	alike[0].Name, alike[2].Name = "eth2", "eth0"
	require.Equal(t, []rails.Pair{{0, 2}, {1, 1}, {2, 0}}, rails.Match(side(three), alike, false, knows("-..")), "rails of one name are tried first")
}

// Whatever is known, each rail that may reach another is in a pair, no pair that is apart is taken beside such, and pairs that are learned one after the other
// end with those that work.
func TestMatchLearns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, m := rapid.IntRange(1, 9).Draw(t, "ours"), rapid.IntRange(1, 9).Draw(t, "theirs")
		lane := func(count int, name string) []int { // the plane of the fabric that each rail is on
			return rapid.SliceOfN(rapid.IntRange(0, 8), count, count).Draw(t, name)
		}
		ours, theirs := lane(n, "planes"), lane(m, "peer's planes")
		learned := map[rails.Pair]rails.Reach{}
		known := func(own, peer int) rails.Reach { return learned[rails.Pair{Own: own, Peer: peer}] }
		words := func(n int) (s string) {
			for range n {
				s += "net/a "
			}
			return s
		}
		a, b := side(words(n)), rails.Offers(side(words(m)))
		var pairs []rails.Pair
		for round := 0; ; round++ {
			require.LessOrEqual(t, round, n*m+1)
			pairs = rails.Match(a, b, false, known)
			more := false
			for _, p := range pairs {
				if learned[p] == rails.Unknown {
					learned[p], more = rails.Apart, true
					if ours[p.Own] == theirs[p.Peer] {
						learned[p] = rails.Works
					}
				}
			}
			if !more {
				break
			}
		}
		for i, plane := range ours {
			works := slices.ContainsFunc(pairs, func(p rails.Pair) bool { return p.Own == i && theirs[p.Peer] == plane })
			require.Equal(t, slices.Contains(theirs, plane), works, "rail %d: %v", i, pairs)
		}
		for i, plane := range theirs {
			works := slices.ContainsFunc(pairs, func(p rails.Pair) bool { return p.Peer == i && ours[p.Own] == plane })
			require.Equal(t, slices.Contains(ours, plane), works, "the peer's rail %d: %v", i, pairs)
		}
	})
}

// Memory is wanted on rails that reach the peer's, only if those that have it are apart from all of these.
func TestTowardsKnown(t *testing.T) {
	four := "net/a net/a net/a net/a"
	var peer []wire.RailOffer
	for i, o := range rails.Offers(side(four)) {
		o.Name = fmt.Sprint("eth", i)
		peer = append(peer, o)
	}
	for name, c := range map[string]struct {
		known rails.Known
		want  uint64
	}{
		"nothing known": {nil, 0},
		"not all apart": {knows("..--", "..-."), 0},
		"alike":         {knows("..--", "..--"), 0b1100},
		"works":         {knows("..--", "..--", "..+."), 0b0100},
		"untried":       {knows("..--", "..--", "..-.", "...-"), 0b1100},
		"none":          {knows("..--", "..--", "..--", "..--"), 0},
	} {
		require.Equal(t, c.want, rails.Towards(side(four), peer, 0b0011, 0b1100, c.known), name)
	}
}
