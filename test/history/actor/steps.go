package actor

import (
	"math/rand/v2"
	"slices"
	"time"
)

// calm is the first kind of step that hurts no transfer.
const calm = 22

// step does the next step of the schedule. What cannot be done now is left out.
func (a *actor) step(now time.Time) {
	rng := rand.New(rand.NewPCG(seed(a.Seed, a.Engine), a.steps))
	a.steps++
	var others []string
	for _, name := range a.Names {
		if name != a.Engine.Agent {
			others = append(others, name)
		}
	}
	kind, other := rng.IntN(1000), others[rng.IntN(len(others))]
	in := postArgs{descs: []int{1, 1, 3, 64}[rng.IntN(4)], size: -1, clear: rng.IntN(2) == 0}
	side, index := rng.IntN(2), slices.Index([]bool{rng.IntN(2) == 0, rng.IntN(2) == 0, rng.IntN(2) == 0, true}, true)
	if rng.IntN(2) == 0 {
		in.size = length(rng)
	}
	if rng.IntN(8) == 0 {
		in.release = time.Duration(1+rng.IntN(5000)) * time.Microsecond
	}
	notes, group, hold := 1+rng.IntN(10), rng.IntN(Groups), time.Duration(rng.IntN(300))*time.Millisecond
	a.next = now.Add(time.Duration(rng.IntN(4000)) * time.Microsecond)
	if a.Calm {
		kind, in.release = max(kind, calm), 0
	}
	if kind < 8 {
		r := a.regions[a.number(other)*Groups+group]
		r.wanted, r.hold = now.Add(100*time.Millisecond), hold
		return
	}
	p := a.peers[other]
	if p == nil || p.load != nil || now.Before(p.rest) {
		return
	}
	if !p.known || !a.agent.Knows(other) {
		_ = a.replace(p, Load{Engine: p.engine})
		a.wait(p)
		return
	}
	switch {
	case kind < 16:
		a.expel(p, p.sides[side])
	case kind < calm:
		_ = a.replace(p, Load{Engine: p.engine})
	case kind < 150:
		for range notes {
			a.tell(p, length(rng))
		}
	default:
		a.post(p, p.sides[side].slots[index], in)
	}
}

// length is of a notification: most are small, some are cut into fragments.
func length(rng *rand.Rand) int {
	if rng.IntN(20) == 0 {
		return rng.IntN(200_000)
	}
	return rng.IntN(200)
}
