package rails

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestModel compares the cache with a list of registrations that is searched by brute force.
func TestModel(t *testing.T) {
	type reg struct {
		addr, length    uint64
		owners, partial int
	}
	type user struct {
		ref   *Ref[*region]
		reg   *reg
		owner bool
	}
	rapid.Check(t, func(t *rapid.T) {
		f, c := newFake()
		regs := map[*region]*reg{}
		var users []user
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				addr, length := rapid.Uint64Range(0, 24).Draw(t, "addr"), rapid.Uint64Range(1, 16).Draw(t, "len")
				exact, around := false, false
				for _, r := range regs {
					if r.owners > 0 && r.addr <= addr && r.addr+r.length >= addr+length {
						around = true
						exact = exact || r.addr == addr && r.length == length
					}
				}
				ref := acquire(t, c, addr, length, around)
				h, ok := ref.Handle()
				require.True(t, ok)
				if !around {
					require.Nil(t, regs[h])
					regs[h] = &reg{addr: addr, length: length}
				}
				r := regs[h]
				owner := r.addr == addr && r.length == length
				require.True(t, owner || !exact && around)
				require.True(t, r.addr <= addr && r.addr+r.length >= addr+length, "covers the acquired range")
				if owner {
					r.owners++
				} else {
					require.Positive(t, r.owners, "a retired registration gets no new users")
					r.partial++
				}
				users = append(users, user{ref, r, owner})
			},
			"release": func(t *rapid.T) {
				if len(users) == 0 {
					t.Skip("none")
				}
				i := rapid.IntRange(0, len(users)-1).Draw(t, "which")
				u := users[i]
				users = append(users[:i], users[i+1:]...)
				want := Kept
				if u.owner {
					if u.reg.owners--; u.reg.owners == 0 {
						want = Retired
					}
				} else {
					u.reg.partial--
				}
				if u.reg.owners+u.reg.partial == 0 {
					want = Closed
					h, _ := u.ref.Handle()
					delete(regs, h)
				}
				release(t, c, u.ref, want)
			},
			"": func(t *rapid.T) {
				require.Len(t, f.open, len(regs))
				wantLive, wantRetired := 0, 0
				for h, r := range regs {
					require.True(t, f.open[h])
					if r.owners > 0 {
						wantLive++
					} else {
						wantRetired++
					}
				}
				live, retired := c.Len()
				require.Equal(t, [2]int{wantLive, wantRetired}, [2]int{live, retired})
				checkTree(t, c.live.root)
			},
		})
	})
}

// checkTree checks order, priorities and maxLast.
func checkTree[H any](t require.TestingT, n *node[H]) (maxLast uint64) {
	if n == nil {
		return 0
	}
	maxLast = max(n.last, checkTree(t, n.left), checkTree(t, n.right))
	require.Equal(t, maxLast, n.maxLast)
	for _, child := range []*node[H]{n.left, n.right} {
		require.True(t, child == nil || child.priority <= n.priority)
	}
	require.True(t, n.left == nil || before(n.left.addr, n.left.last, n.addr, n.last))
	require.True(t, n.right == nil || before(n.addr, n.last, n.right.addr, n.right.last))
	return maxLast
}
