package history

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	alice = Engine{"alice", 1}
	bob   = Engine{"bob", 1}
	carol = Engine{"carol", 2}
)

// script is a history that tests write by hand: an event a millisecond.
type script []Event

func (s *script) add(e Event) *script {
	e.At = int64(len(*s)+1) * int64(time.Millisecond)
	*s = append(*s, e)
	return s
}

func (s *script) call(by Engine, op uint64, what What, to Engine, note uint64) *script {
	return s.add(Event{By: by, Kind: Call, Op: op, What: what, To: to, Note: note})
}

func (s *script) end(by Engine, op uint64, r Result) *script {
	return s.add(Event{By: by, Kind: End, Op: op, Result: r})
}

func (s *script) got(by, from Engine, notes ...uint64) *script {
	for _, n := range notes {
		s.add(Event{By: by, Kind: Got, To: from, Note: n})
	}
	return s
}

func (s *script) fault(by Engine, k Kind) *script { return s.add(Event{By: by, Kind: k}) }

// send is an accepted notification.
func (s *script) send(op uint64, note uint64) *script {
	return s.call(alice, op, Notify, bob, note).end(alice, op, OK)
}

var tcp = Params{Providers: []string{"tcp"}, Memory: "DRAM", Bound: time.Minute}

// broken returns the promises that a history breaks.
func broken(t *testing.T, s *script, p Params) (out []Property) {
	t.Helper()
	r, err := Check(*s, p)
	require.NoError(t, err)
	for _, v := range r.Violations {
		out = append(out, v.Property)
		require.Contains(t, r.Failures(9), v.Why)
	}
	return out
}

// TestCheck has histories that keep all promises, and histories that break one.
func TestCheck(t *testing.T) {
	success := func(end Event) *script {
		end.By, end.Kind, end.Op, end.Result = alice, End, 1, OK
		return new(script).call(alice, 1, Write, bob, 0).add(end)
	}
	taken := func(by Engine, of Engine, wrong int64) Event {
		return Event{By: by, Kind: Taken, To: of, Op: 1, Wrong: wrong}
	}
	for name, c := range map[string]struct {
		s    *script
		want []Property
	}{
		"nothing":                          {new(script), nil},
		"success":                          {success(Event{}), nil},
		"success with other bytes":         {success(Event{Wrong: 1}), []Property{Bytes}},
		"the target has seen the bytes":    {success(Event{Unseen: true}).add(taken(bob, alice, 0)), nil},
		"and others":                       {success(Event{Unseen: true}).add(taken(bob, alice, 8)), []Property{Bytes}},
		"another target has":               {success(Event{Unseen: true}).add(taken(carol, alice, 0)), []Property{Bytes}},
		"those of another initiator":       {success(Event{Unseen: true}).add(taken(bob, carol, 0)), []Property{Bytes}},
		"the target was killed before":     {success(Event{Unseen: true}).fault(bob, Killed), nil},
		"an error has any bytes":           {new(script).call(alice, 1, Read, bob, 0).end(alice, 1, Failed), nil},
		"a call without an end":            {new(script).call(alice, 1, Load, bob, 0), []Property{Ends}},
		"a transfer without an end":        {new(script).call(alice, 1, Read, bob, 3), []Property{Ends}},
		"its process was killed":           {new(script).call(alice, 1, Read, bob, 3).fault(alice, Killed), nil},
		"its peer was killed":              {new(script).call(alice, 1, Read, bob, 3).fault(bob, Killed), []Property{Ends}},
		"deregistration has failed":        {new(script).call(bob, 1, Deregister, alice, 0).end(bob, 1, Failed), []Property{TakenBack}},
		"registration has failed":          {new(script).call(bob, 1, Register, alice, 0).end(bob, 1, Failed), nil},
		"memory changed":                   {success(Event{}).add(Event{By: alice, Kind: Watched, Op: 1, Place: Local, Result: OK, Wrong: 9}), []Property{Untouched}},
		"memory was watched":               {success(Event{}).add(Event{By: alice, Kind: Watched, Op: 1, Place: Local, Result: OK}), nil},
		"deregistered memory changed":      {new(script).call(bob, 1, Deregister, alice, 0).end(bob, 1, OK).add(Event{By: bob, Kind: Watched, Op: 1, Place: Gone, Wrong: 1}), []Property{Untouched}},
		"delivered":                        {new(script).send(1, 1).send(2, 2).got(bob, alice, 1, 2), nil},
		"twice":                            {new(script).send(1, 1).got(bob, alice, 1, 1), []Property{Delivered}},
		"never":                            {new(script).send(1, 1), []Property{Delivered}},
		"never sent":                       {new(script).got(bob, alice, 7), []Property{Delivered}},
		"to another":                       {new(script).send(1, 1).got(carol, alice, 1), []Property{Delivered, Delivered}},
		"not whole":                        {new(script).send(1, 1).got(bob, alice, 1).add(Event{By: bob, Kind: Got, Wrong: 1}), []Property{Delivered}},
		"in another order":                 {new(script).send(1, 1).send(2, 2).got(bob, alice, 2, 1), []Property{Ordered}},
		"a gap":                            {new(script).send(1, 1).send(2, 2).got(bob, alice, 2), []Property{Ordered}},
		"a gap, the target was killed":     {new(script).send(1, 1).send(2, 2).got(bob, alice, 2).fault(bob, Killed), []Property{Ordered}},
		"not accepted":                     {new(script).call(alice, 1, Notify, bob, 1).end(alice, 1, Failed), nil},
		"not accepted, delivered":          {new(script).call(alice, 1, Write, bob, 1).end(alice, 1, Failed).got(bob, alice, 1), nil},
		"not accepted, delivered twice":    {new(script).call(alice, 1, Write, bob, 1).end(alice, 1, Failed).got(bob, alice, 1, 1), []Property{Delivered}},
		"not accepted, a gap":              {new(script).call(alice, 1, Write, bob, 1).end(alice, 1, Failed).send(2, 2).got(bob, alice, 2), nil},
		"the target was killed":            {new(script).send(1, 1).fault(bob, Killed), nil},
		"the sender was killed":            {new(script).send(1, 1).fault(alice, Killed), nil},
		"somebody else was killed":         {new(script).send(1, 1).fault(carol, Killed), []Property{Delivered}},
		"two at a time come in any order":  {new(script).call(alice, 1, Write, bob, 1).call(alice, 2, Write, bob, 2).end(alice, 1, OK).end(alice, 2, OK).got(bob, alice, 2, 1), nil},
		"the first ended before the next":  {new(script).call(alice, 1, Write, bob, 1).end(alice, 1, OK).call(alice, 2, Write, bob, 2).end(alice, 2, OK).got(bob, alice, 2, 1), []Property{Ordered}},
		"engines have orders of their own": {new(script).send(1, 1).call(carol, 1, Notify, bob, 1).end(carol, 1, OK).got(bob, carol, 1).got(bob, alice, 1), nil},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, broken(t, c.s, tcp)) })
	}
}

// TestBound: a call may take as long as the bound, also one whose process was killed in the end.
func TestBound(t *testing.T) {
	for _, last := range []Event{{By: alice, Kind: End, Op: 1, Result: Failed}, {By: alice, Kind: Killed}} {
		s := new(script).call(alice, 1, Read, bob, 0).add(last)
		(*s)[1].At = (*s)[0].At + int64(time.Minute)
		require.Empty(t, broken(t, s, tcp))
		(*s)[1].At++
		require.Equal(t, []Property{Ends}, broken(t, s, tcp))
	}
}

// TestSpared: where each fault leaves a rail, an error of a transfer is a violation, unless its initiator removed the peer meanwhile.
func TestSpared(t *testing.T) {
	spared := tcp
	spared.Spared = true
	failed := func(r Result) *script {
		return new(script).call(alice, 1, Write, bob, 0).fault(bob, Cut).end(alice, 1, r)
	}
	require.Empty(t, broken(t, failed(Failed), tcp))
	require.Equal(t, []Property{Alive}, broken(t, failed(Failed), spared))
	require.Equal(t, []Property{Alive}, broken(t, failed(NotFound), spared))
	require.Empty(t, broken(t, failed(OK), spared))
	require.Empty(t, broken(t, failed(Released), spared))
	require.Empty(t, broken(t, new(script).call(alice, 1, Read, bob, 0).call(alice, 2, Invalidate, bob, 0).end(alice, 2, OK).end(alice, 1, NotFound), spared))
	require.Empty(t, broken(t, new(script).call(alice, 1, Notify, bob, 1).end(alice, 1, Failed), spared), "a notification that is not accepted")
}

// TestBroken: a history with a number that is used twice, or an end of nothing, is no history.
func TestBroken(t *testing.T) {
	for _, s := range []*script{
		new(script).call(alice, 1, Read, bob, 0).call(alice, 1, Read, bob, 0),
		new(script).end(alice, 1, OK),
		new(script).call(alice, 1, Read, bob, 0).end(alice, 1, OK).end(alice, 1, OK),
		new(script).call(alice, 1, Read, bob, 0).end(bob, 1, OK),
	} {
		_, err := Check(*s, tcp)
		require.Error(t, err)
	}
}

// TestExceptions: each row excuses a history, which is a violation without the row's provider, result, place or fault.
func TestExceptions(t *testing.T) {
	released := func(place Place, r Result) *script {
		return new(script).call(alice, 1, Write, bob, 0).end(alice, 1, r).add(Event{By: alice, Kind: Watched, Op: 1, Place: place, Result: r, Wrong: 1})
	}
	gone := func(fault Kind, of Engine) *script {
		return new(script).call(bob, 1, Deregister, alice, 0).fault(of, fault).end(bob, 1, OK).add(Event{By: bob, Kind: Watched, Op: 1, To: alice, Place: Gone, Wrong: 1})
	}
	failed := func(fault Kind, of Engine) *script {
		return new(script).call(bob, 1, Deregister, alice, 0).fault(of, fault).end(bob, 1, Failed)
	}
	on := func(provider, memory string) Params {
		return Params{Providers: []string{provider}, Memory: memory, Bound: time.Minute}
	}
	seen := map[*Row]bool{}
	for _, c := range []struct {
		s    *script
		p    Params
		bad  *script // the same, but for what the row asks for
		badP Params
	}{
		{released(Remote, Released), tcp, released(Local, Released), tcp},
		{released(Remote, NotFound), tcp, released(Remote, Failed), tcp},
		{gone(Stopped, alice), tcp, gone(Stopped, carol), tcp},
		{failed(Stopped, alice), on("sm", "DRAM"), failed(Stopped, alice), tcp},
		{gone(Stopped, bob), on("sm", "DRAM"), gone(Cut, bob), on("sm", "DRAM")},
		{released(Local, NotFound), on("efa", "DRAM"), released(Local, NotFound), tcp},
		{gone(Killed, alice), on("cxi", "DRAM"), gone(Killed, alice), tcp},
		{gone(Cut, alice), on("sm", "VRAM"), gone(Cut, alice), on("sm", "DRAM")},
	} {
		r, err := Check(*c.s, c.p)
		require.NoError(t, err)
		require.Empty(t, r.Violations)
		require.Len(t, r.Excused, 1)
		for row := range r.Excused {
			seen[row] = true
			require.Contains(t, r.Summary(), row.Reason)
		}
		require.Len(t, broken(t, c.bad, c.badP), 1)
	}
	require.Len(t, seen, len(Exceptions))
}

// TestStops: a stop counts if it lasts into the call or begins in it.
func TestStops(t *testing.T) {
	before := new(script).fault(alice, Stopped).fault(alice, Resumed).call(bob, 1, Deregister, alice, 0).end(bob, 1, Failed)
	require.Equal(t, []Property{TakenBack}, broken(t, before, Params{Providers: []string{"sm"}, Bound: time.Minute}))
	into := new(script).fault(alice, Stopped).call(bob, 1, Deregister, alice, 0).fault(alice, Resumed).end(bob, 1, Failed)
	require.Empty(t, broken(t, into, Params{Providers: []string{"sm"}, Bound: time.Minute}))
}

// TestExceptionsAreDocumented: each row quotes a page.
func TestExceptionsAreDocumented(t *testing.T) {
	for _, row := range Exceptions {
		page, words, ok := strings.Cut(row.Doc, ": ")
		require.True(t, ok, row.Doc)
		text, err := os.ReadFile(filepath.Join("../..", page))
		require.NoError(t, err)
		plain := strings.NewReplacer("*", "", "\n", " ").Replace(string(text))
		require.Contains(t, strings.Join(strings.Fields(plain), " "), words)
	}
}

// TestLog: what was written is read in the order of time, without a line that was cut off.
func TestLog(t *testing.T) {
	dir := t.TempDir()
	var paths []string
	var logs []*Log
	for _, by := range []Engine{alice, bob} {
		path := filepath.Join(dir, by.Agent)
		l, err := NewLog(path, by)
		require.NoError(t, err)
		paths, logs = append(paths, path), append(logs, l)
	}
	require.NoError(t, logs[0].Add(Event{Kind: Call, Op: 1, What: Write, To: bob, Note: 3}))
	require.NoError(t, logs[1].Add(Event{Kind: Got, To: alice, Note: 3}))
	require.NoError(t, logs[0].Add(Event{Kind: End, Op: 1, Result: OK}))
	require.NoError(t, logs[0].Add(Event{Kind: Killed, By: bob}))
	_, err := logs[1].f.WriteString(`{"t":99,"by":{"a":"bo`)
	require.NoError(t, err)
	for _, l := range logs {
		require.NoError(t, l.Close())
	}
	h, err := ReadFiles(paths...)
	require.NoError(t, err)
	require.Len(t, h, 4)
	require.Equal(t, []Engine{alice, bob, alice, bob}, []Engine{h[0].By, h[1].By, h[2].By, h[3].By})
	require.Positive(t, h[0].At)
	h[0].At = 0
	require.Equal(t, Event{By: alice, Kind: Call, Op: 1, What: Write, To: bob, Note: 3}, h[0])
	_, err = ReadFiles(filepath.Join(dir, "missing"))
	require.Error(t, err)
	_, err = Parse(strings.NewReader("no history\n"))
	require.Error(t, err)
}

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
