package limits

import (
	"net/netip"
	"sync"
	"time"
)

// ID stands for the names in a peer's certificate. Equal names have equal IDs. The zero ID: no certificate is proved.
type ID [32]byte

// Owner is who takes something: the source address and the certified identity of a session's peer.
type Owner struct {
	Source   netip.Addr
	Identity ID
}

// Amount is a number of sessions, of endpoints, of the descriptors that the endpoints take, and bytes of memory.
type Amount struct{ Sessions, Endpoints, Descriptors, Bytes int }

// Plus adds two amounts.
func (a Amount) Plus(b Amount) Amount {
	return Amount{a.Sessions + b.Sessions, a.Endpoints + b.Endpoints, a.Descriptors + b.Descriptors, a.Bytes + b.Bytes}
}

// Within returns true if a is within a limit.
func (a Amount) Within(most Amount) bool {
	return a.Sessions <= most.Sessions && a.Endpoints <= most.Endpoints && a.Descriptors <= most.Descriptors && a.Bytes <= most.Bytes
}

// quarters is three quarters of a limit, rounded down, and at least one.
func (a Amount) quarters() Amount {
	of := func(n int) int { return max(min(n, 1), n-(n+3)/4) }
	return Amount{of(a.Sessions), of(a.Endpoints), of(a.Descriptors), of(a.Bytes)}
}

// Most are the limits of a Places. One identity may take more than Identity and OfSource while no other one asks: where
// all peers share one certificate, it says no more than that they are peers.
type Most struct {
	All, Source Amount
	Identity    Amount // of one identity
	OfSource    Amount // of one identity at one source
}

// Quarters are the usual limits: a source gets three quarters of all, and an identity three quarters of each.
func Quarters(all Amount) Most { return MostOf(all, all.quarters()) }

// MostOf returns the limits where a source has a limit of its own. An identity gets three quarters of each.
func MostOf(all, source Amount) Most {
	return Most{All: all, Source: source, Identity: all.quarters(), OfSource: source.quarters()}
}

// Bound is a limit that refused a Take.
type Bound int

// The bounds. ByNone: nothing was refused.
const (
	ByNone Bound = iota
	ByAll
	BySource
	ByIdentity
)

// Refusal says which limit is reached, and who should make room.
type Refusal struct {
	By   Bound
	Has  Amount // what counts against that limit already
	From Owner  // who should make room: everybody of this source and this identity; zero fields match all
	Lent bool   // From has more than its share, and makes room even if it is in good order. Once until From gives something back
}

// Asks reports whether an owner should make room.
func (f Refusal) Asks(o Owner) bool {
	return (!f.From.Source.IsValid() || f.From.Source == o.Source) && (f.From.Identity == ID{} || f.From.Identity == o.Identity)
}

// Places counts what peers' sessions use: in all, by source address and by identity. The zero value is ready. It is safe
// for concurrent use.
type Places struct {
	mu      sync.Mutex
	all     pool
	sources map[netip.Addr]*pool
}

// pool is what is used in all, or at one source.
type pool struct {
	used       Amount
	identities map[ID]Amount
	asked      [2]asking        // the last two identities that asked
	recalled   map[ID]time.Time // identities that were told to make room, until they give something back
}

// asking is an identity that asked for something.
type asking struct {
	id ID
	at time.Time
}

// remembered is the time for which a share is kept for an identity that has nothing, after it asked.
const remembered = 10 * time.Minute

// recallEvery is the time after which an identity that has given nothing back is told to make room again.
const recallEvery = 10 * time.Second

// Take counts an amount of an owner. By is ByNone, or nothing is counted.
func (r *Places) Take(o Owner, more Amount, most Most, now time.Time) Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	from := r.sources[o.Source]
	if from == nil {
		from = &pool{}
	}
	// Both pools note who asks.
	f, g := from.refuses(o.Identity, more, most.Source, most.OfSource, now), r.all.refuses(o.Identity, more, most.All, most.Identity, now)
	if f.By == ByAll {
		f.By = BySource
	}
	if f.By == BySource && most.All.Within(most.Source) { // a source may have all
		f = Refusal{}
	}
	if f.By != ByNone {
		f.From.Source = o.Source
		f.Lent = f.Lent && from.recall(f.From.Identity, now)
		return f
	}
	if g.By != ByNone {
		g.Lent = g.Lent && r.all.recall(g.From.Identity, now)
		return g
	}
	if r.sources == nil {
		r.sources = map[netip.Addr]*pool{}
	}
	r.sources[o.Source] = from
	from.add(o.Identity, more)
	r.all.add(o.Identity, more)
	return Refusal{}
}

// Give takes back a count of Take.
func (r *Places) Give(o Owner, less Amount) {
	r.mu.Lock()
	defer r.mu.Unlock()
	less = Amount{-less.Sessions, -less.Endpoints, -less.Descriptors, -less.Bytes}
	r.all.add(o.Identity, less)
	delete(r.all.recalled, o.Identity)
	if from := r.sources[o.Source]; from != nil {
		delete(from.recalled, o.Identity)
		if from.add(o.Identity, less); from.used == (Amount{}) {
			delete(r.sources, o.Source)
		}
	}
}

// Used is the usage of all owners.
func (r *Places) Used() Amount {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.used
}

func (p *pool) add(id ID, more Amount) {
	p.used = p.used.Plus(more)
	if id == (ID{}) {
		return
	}
	if p.identities == nil {
		p.identities = map[ID]Amount{}
	}
	if p.identities[id] = p.identities[id].Plus(more); p.identities[id] == (Amount{}) {
		delete(p.identities, id)
	}
}

// refuses checks the pool's limit, and that of an identity in it.
func (p *pool) refuses(id ID, more, most, share Amount, now time.Time) Refusal {
	if id != (ID{}) {
		p.note(id, now)
		if has := p.identities[id]; !has.Plus(more).Within(share) && p.othersThan(id, now) {
			return Refusal{By: ByIdentity, Has: has, From: Owner{Identity: id}}
		}
	}
	if p.used.Plus(more).Within(most) {
		return Refusal{}
	}
	f := Refusal{By: ByAll, Has: p.used}
	if id != (ID{}) {
		for other, has := range p.identities {
			if other != id && !has.Within(share) {
				f.From.Identity, f.Lent = other, true
			}
		}
	}
	return f
}

// recall notes that an identity is told to make room. false: it was told before. What it holds takes time to become free, and
// it would lose more than it has beyond its share.
func (p *pool) recall(id ID, now time.Time) bool {
	if since, before := p.recalled[id]; before && now.Sub(since) < recallEvery {
		return false
	}
	if p.recalled == nil {
		p.recalled = map[ID]time.Time{}
	}
	p.recalled[id] = now
	return true
}

// note keeps the two identities that asked last.
func (p *pool) note(id ID, now time.Time) {
	if p.asked[0].id != id {
		p.asked[1] = p.asked[0]
	}
	p.asked[0] = asking{id, now}
}

// othersThan reports whether another identity has something, or has asked for it lately.
func (p *pool) othersThan(id ID, now time.Time) bool {
	if _, has := p.identities[id]; has && len(p.identities) > 1 || !has && len(p.identities) > 0 {
		return true
	}
	for _, a := range p.asked {
		if a.id != id && a.id != (ID{}) && now.Sub(a.at) < remembered {
			return true
		}
	}
	return false
}
