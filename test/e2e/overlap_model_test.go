package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/hostmem"
	"gorail/test/seeds"
	"gorail/test/worker"
)

// The model has a buffer for each agent, in cells. Each cell knows what its bytes are.
const (
	modelCells = 48
	modelCell  = 1000 // bytes; no cell but the first begins on a page
)

// cell is the pattern of a cell's bytes.
type cell struct{ seed, pos uint64 }

// piece is a range of cells.
type piece struct{ from, to int }

func (p piece) layout() worker.Layout {
	return worker.Span(uint64(p.from)*modelCell, uint64(p.to-p.from)*modelCell)
}

func (p piece) in(q piece) bool { return q.from <= p.from && p.to <= q.to }

// modelAgent is an agent and what the model knows of it.
type modelAgent struct {
	*worker.Agent
	buf   *worker.Buf
	cells [modelCells]cell
	has   []piece            // its registrations
	knows map[string][]piece // what it has loaded of its peers, ever: NIXL's agent forgets no range
}

// modelRequest is a request that may be posted again.
type modelRequest struct {
	x         *worker.Xfer
	op        nixlapi.Op
	ini, peer *modelAgent
	here, at  piece
}

// model makes random calls, and knows every byte and notification.
type model struct {
	t        *testing.T
	rnd      *rand.Rand
	agents   []*modelAgent
	made     []*modelRequest
	seed     uint64
	good     int
	refused  int
	unmade   int
	schedule []string
}

func (m *model) say(format string, args ...any) {
	m.schedule = append(m.schedule, fmt.Sprintf(format, args...))
}

// TestOverlapModel: four agents register overlapping ranges, deregister them, load each other's metadata, and transfer, at random. A transfer
// succeeds if live registrations that its initiator knows cover it at both sides, also one that was made over others. Otherwise it fails and
// changes nothing. All bytes and notifications are compared.
func TestOverlapModel(t *testing.T) {
	t.Parallel()
	ours(t)
	for seed := uint64(1); seed <= seeds.Count(t, 2, 12); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			newModel(t, seed).run()
		})
	}
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{t: t, rnd: rand.New(rand.NewPCG(seed, 49))}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(strings.Join(m.schedule, "\n"))
		}
	})
	provider := []string{"tcp", smProvider()}[seed%2]
	for i := range 4 {
		a := &modelAgent{Agent: start(t, fmt.Sprint("agent", i), params("provider", provider)), knows: map[string][]piece{}}
		a.buf = a.Alloc(modelCells*modelCell, hostmem.Anon)
		m.agents = append(m.agents, a)
		a.Polling(true)
		m.fill(a, piece{0, modelCells})
		m.register(a)
	}
	for _, a := range m.agents {
		for _, b := range m.agents {
			if a != b {
				m.load(a, b)
			}
		}
	}
	return m
}

func (m *model) run() {
	for i := range 160 {
		a := m.agents[m.rnd.IntN(len(m.agents))]
		b := m.agents[m.rnd.IntN(len(m.agents))]
		switch k := m.rnd.IntN(16); {
		case k < 2:
			m.register(a)
		case k < 5:
			m.deregister(a)
		case k < 7 && a != b:
			m.load(a, b)
		case k < 12 && a != b:
			m.create(a, b)
		case len(m.made) > 0:
			m.post(m.made[m.rnd.IntN(len(m.made))])
		}
		if i%20 == 19 {
			m.compare()
		}
	}
	m.compare()
	m.t.Logf("%d transfers succeeded, %d failed, %d requests were not made", m.good, m.refused, m.unmade)
	require.Positive(m.t, m.good)
}

func (m *model) piece() piece {
	from := m.rnd.IntN(modelCells)
	return piece{from, from + 1 + m.rnd.IntN(modelCells-from)}
}

// fill is the owner's own write to a part of its buffer.
func (m *model) fill(a *modelAgent, p piece) {
	m.seed++
	l := p.layout()
	a.buf.FillRange(l.Off, l.Len, m.seed, l.Off)
	for i := p.from; i < p.to; i++ {
		a.cells[i] = cell{m.seed, uint64(i) * modelCell}
	}
}

func (m *model) register(a *modelAgent) {
	p := m.piece()
	if slices.Contains(a.has, p) {
		return
	}
	m.say("%s registers %v", a.Name, p)
	require.NoError(m.t, a.Register(a.buf.At(p.layout())))
	a.has = append(a.has, p)
}

// deregister keeps one registration: NIXL loads no metadata of an agent without memory.
func (m *model) deregister(a *modelAgent) {
	if len(a.has) < 2 {
		return
	}
	i := m.rnd.IntN(len(a.has))
	m.say("%s deregisters %v", a.Name, a.has[i])
	require.NoError(m.t, a.Deregister(a.buf.At(a.has[i].layout())))
	a.has = slices.Delete(a.has, i, i+1)
}

func (m *model) load(a, b *modelAgent) {
	m.say("%s loads %s: %v", a.Name, b.Name, b.has)
	a.Learn(b.Agent)
	for _, p := range b.has {
		if !slices.Contains(a.knows[b.Name], p) {
			a.knows[b.Name] = append(a.knows[b.Name], p)
		}
	}
}

// create makes and posts a request, of memory that the agents have a registration of: NIXL's agent refuses others.
func (m *model) create(a, b *modelAgent) {
	inside := func(list []piece) piece {
		q := list[m.rnd.IntN(len(list))]
		from := q.from + m.rnd.IntN(q.to-q.from)
		return piece{from, from + 1 + m.rnd.IntN(min(q.to-from, 8))}
	}
	here, there := inside(a.has), inside(a.knows[b.Name])
	n := min(here.to-here.from, there.to-there.from)
	r := &modelRequest{op: []nixlapi.Op{nixlapi.Write, nixlapi.Read}[m.rnd.IntN(2)], ini: a, peer: b, here: piece{here.from, here.from + n}, at: piece{there.from, there.from + n}}
	m.say("%s makes a %s of %v, %v of %s", a.Name, r.op, r.here, r.at, b.Name)
	x, err := a.TryXfer(worker.XferSpec{Op: r.op, Local: a.buf.At(r.here.layout()), Remote: b.buf.At(r.at.layout()), Peer: b.Name})
	if err != nil { // NIXL's agent looks only at the registrations beside the one it finds
		require.NotContains(m.t, a.Output(), "prepare: ", "the request is refused by the backend: %v", err)
		m.unmade++
		return
	}
	r.x = x
	m.made = append(m.made, r)
	m.post(r)
	if len(m.made) > 24 {
		i := m.rnd.IntN(len(m.made))
		require.NoError(m.t, m.made[i].x.Release())
		m.made = slices.Delete(m.made, i, i+1)
	}
}

// covered reports that registrations cover a range, each cell by one of them.
func covered(p piece, list []piece) bool {
	for i := p.from; i < p.to; i++ {
		if !slices.ContainsFunc(list, func(q piece) bool { return (piece{i, i + 1}).in(q) }) {
			return false
		}
	}
	return true
}

func (m *model) post(r *modelRequest) {
	live := slices.DeleteFunc(slices.Clone(r.peer.has), func(p piece) bool { return !slices.Contains(r.ini.knows[r.peer.Name], p) })
	good := covered(r.here, r.ini.has) && covered(r.at, live)
	msg := fmt.Sprint("post ", len(m.schedule))
	m.say("%s posts %s of %v, %v of %s: %v", r.ini.Name, r.op, r.here, r.at, r.peer.Name, good)
	s := r.x.PostNotif([]byte(msg))
	if s == nixlapi.InProgress {
		s = r.x.Wait(limit)
	}
	if !good {
		require.True(m.t, s.Failed(), s)
		require.True(m.t, r.ini.Knows(r.peer.Name), "the agent forgot a peer that lives")
		m.refused++
		return
	}
	require.Equal(m.t, nixlapi.Success, s, "%s", r.ini.Output())
	m.good++
	require.Equal(m.t, []nixlapi.Notif{{From: r.ini.Name, Msg: []byte(msg)}}, r.peer.WaitNotifs(1, limit))
	from, to, src, dst := r.here, r.at, r.ini, r.peer
	if r.op == nixlapi.Read {
		from, to, src, dst = r.at, r.here, r.peer, r.ini
	}
	copy(dst.cells[to.from:to.to], src.cells[from.from:from.to])
	if m.rnd.IntN(2) == 0 {
		m.fill(src, from)
	}
}

// compare compares every byte.
func (m *model) compare() {
	m.t.Helper()
	for _, a := range m.agents {
		for i := 0; i < modelCells; {
			n := 1
			for i+n < modelCells && a.cells[i+n] == (cell{a.cells[i].seed, a.cells[i].pos + uint64(n)*modelCell}) {
				n++
			}
			at := a.buf.Diff(uint64(i)*modelCell, uint64(n)*modelCell, a.cells[i].seed, a.cells[i].pos)
			require.EqualValues(m.t, -1, at, "byte %d behind cell %d of %s", at, i, a.Name)
			i += n
		}
	}
}
