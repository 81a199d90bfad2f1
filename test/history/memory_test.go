package history

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var gpu = Params{Providers: []string{"sm"}, Memory: "VRAM", Bound: time.Minute, Soon: 4 * time.Millisecond, Settle: 2 * time.Millisecond}

func (s *script) alter(state State, gen uint64) *script {
	return s.add(Event{By: bob, Kind: Altered, Piece: 1, Gen: gen, State: state})
}

func (s *script) post(op uint64, what What) *script {
	return s.add(Event{By: alice, Kind: Call, Op: op, What: what, To: bob, Piece: 1})
}

func (s *script) done(op, gen uint64, wrong int64) *script {
	return s.add(Event{By: alice, Kind: End, Op: op, Result: OK, Gen: gen, Wrong: wrong})
}

func (s *script) seen(op uint64, wrong int64, unseen bool) *script {
	return s.add(Event{By: bob, Kind: Taken, To: alice, Op: op, Wrong: wrong, Unseen: unseen})
}

func (s *script) held(since int64) *script {
	return s.add(Event{By: bob, Kind: Held, To: alice, Wrong: 4096, Since: since * int64(time.Millisecond)})
}

func (s *script) idle(n int) *script {
	for range n {
		s.fault(carol, Watched)
	}
	return s
}

// stable begins with memory of generation 0, which becomes that of generation gen, a while ago.
func stable(gen uint64) *script {
	s := new(script)
	for n := range gen {
		s.alter(Stable, n).alter(Changing, n).alter(Away, n).alter(Changing, n)
	}
	return s.alter(Stable, gen).idle(3)
}

// TestMemory has histories of memory that changes.
func TestMemory(t *testing.T) {
	for name, c := range map[string]struct {
		s    *script
		want []Property
	}{
		"READ of what is there":                    {stable(2).post(1, Read).done(1, 2, 0), nil},
		"READ of what was there":                   {stable(2).post(1, Read).done(1, 1, 0), []Property{Fresh}},
		"READ of what was there, in a long change": {stable(2).alter(Changing, 2).post(1, Read).done(1, 1, 0), []Property{Fresh}},
		"READ of nothing's":                        {stable(0).post(1, Read).done(1, 0, 1), []Property{Bytes}},
		"READ while it changes":                    {stable(1).post(1, Read).alter(Changing, 1).done(1, 1, 0), nil},
		"READ of memory that is not filled yet":    {stable(1).alter(Changing, 1).alter(Away, 1).post(1, Read).alter(Changing, 1).done(1, 0, 1), nil},
		"READ of memory that is away":              {stable(1).alter(Away, 1).post(1, Read).done(1, 1, 0), []Property{Fresh}},
		"READ of memory that was freed":            {stable(1).alter(Freed, 1).post(1, Read).done(1, 1, 0), []Property{Fresh}},
		"READ of somebody else's memory":           {stable(1).alter(Freed, 1).post(1, Read).done(1, 1, 1), nil},
		"WRITE to memory that was freed":           {stable(1).alter(Freed, 1).post(1, Write).done(1, 0, 0), nil},
		"READ of memory that was away":             {stable(1).alter(Away, 1).post(1, Read).alter(Stable, 2).done(1, 1, 0), []Property{Fresh}},
		"READ of memory that comes back":           {stable(1).alter(Away, 1).post(1, Read).alter(Stable, 2).done(1, 2, 0), nil},
		"WRITE":                                    {stable(1).post(1, Write).done(1, 0, 0).seen(1, 0, false), nil},
		"WRITE to what was there":                  {stable(1).post(1, Write).done(1, 0, 0).seen(1, 1, false), []Property{Fresh}},
		"WRITE to memory that never changed":       {stable(0).post(1, Write).done(1, 0, 0).seen(1, 1, false), []Property{Bytes}},
		"WRITE while it changes":                   {stable(1).post(1, Write).alter(Changing, 1).done(1, 0, 0).seen(1, 1, false), nil},
		"WRITE to memory that changed later":       {stable(1).post(1, Write).done(1, 0, 0).alter(Changing, 1).seen(1, 1, true), nil},
		"WRITE to memory that is away":             {stable(1).alter(Away, 1).post(1, Write).done(1, 0, 0), []Property{Fresh}},
		"error":                                    {stable(1).post(1, Read).end(alice, 1, Failed), []Property{Alive}},
		"the agent has removed the peer":           {stable(1).post(1, Read).end(alice, 1, NotFound), []Property{Alive}},
		"the application has removed the peer":     {stable(1).post(1, Read).call(alice, 2, Invalidate, bob, 0).end(alice, 1, NotFound).end(alice, 2, OK), nil},
		"error while memory is away":               {stable(1).alter(Away, 1).idle(5).post(1, Read).end(alice, 1, Failed), nil},
		"error after a change":                     {stable(1).alter(Stable, 2).post(1, Read).end(alice, 1, Failed), nil},
		"error long after a change":                {stable(1).alter(Stable, 2).idle(5).post(1, Read).end(alice, 1, Failed), []Property{Alive}},
		"error of a stopped peer":                  {stable(1).fault(bob, Stopped).idle(9).post(1, Read).end(alice, 1, Failed), nil},
		"error long after a stop":                  {stable(1).fault(bob, Stopped).fault(bob, Resumed).idle(9).post(1, Read).end(alice, 1, Failed), []Property{Alive}},
		"error before a kill is noted":             {stable(1).post(1, Read).end(alice, 1, Failed).fault(bob, Killed), nil},
		"held for a while":                         {stable(0).held(3), nil},
		"held for long":                            {stable(0).idle(5).held(1).held(1), []Property{GivenBack}},
		"held by a stopped process":                {stable(0).fault(alice, Stopped).idle(9).held(1).fault(alice, Resumed).held(1), nil},
		"held by a process that was stopped":       {stable(0).fault(alice, Stopped).fault(alice, Resumed).idle(5).held(1), []Property{GivenBack}},
		"held by a process that was killed":        {stable(0).fault(alice, Killed).idle(9).held(1), nil},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, broken(t, c.s, gpu)) })
	}
}
