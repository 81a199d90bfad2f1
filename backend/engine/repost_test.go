package engine

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/transfer"
	"gorail/test/fake"
)

// again posts without Go. false: there is no cached post.
func (x *request) again(notif string) bool {
	_, taken := x.a.core.Repost(x.slot, x.handle, true, []byte(notif))
	return taken
}

// warm posts until the transfer has its cached post.
func (x *request) warm() *request {
	x.a.t.Helper()
	x.a.connected("bob")
	until(x.a.t, "the transfer has a cached post", func() bool { x.run(); return x.record().Slot().HasCachedPost() })
	return x
}

// A post goes through Go unless it repeats a post that has ended well.
func TestRepostRefused(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	p := h.pair(64 << 10)
	x := p.a.whole(transfer.Write, p.mine, p.theirs)
	require.False(t, x.again("never posted"))
	x.warm()
	require.True(t, x.again("n"))
	require.Equal(t, done, x.wait())
	_, taken := p.a.core.Repost(x.slot, x.handle+1<<32, false, nil)
	require.False(t, taken, "a handle of another generation")
	require.False(t, x.again(string(make([]byte, core.MaxNotif+1))))

	p.b.rail().Stall()
	require.True(t, x.again("n"))
	require.False(t, x.again("it is running"))
	p.b.rail().Release()
	require.Equal(t, done, x.wait())

	x.release()
	require.False(t, x.again("released"))
	_, err := x.Post()
	require.Equal(t, errcode.ErrNotFound, errcode.StatusOf(err))
	p.b.expect("ann:n", "ann:n")
}

// TestRepostAllocatesNothing: 1,000 prepared requests are posted in turn, as for each version of a model's weights. Neither a post nor its
// polls enter Go or allocate there. Not parallel: AllocsPerRun counts the whole process. It cuts its mean off, so what the engines' tickers
// allocate, some hundred objects a second, is none a post.
func TestRepostAllocatesNothing(t *testing.T) {
	for name, caps := range map[string]fake.Caps{"ordered": fake.TCPCaps(), "unordered": fake.EFACaps()} {
		for op, word := range map[int]string{transfer.Read: "READ", transfer.Write: "WRITE"} {
			t.Run(name+"/"+word, func(t *testing.T) {
				const n, size, turns = 1000, 64, 50
				p := onFake(t, caps).pair(n * size)
				all := make([]*request, n)
				for i := range all {
					all[i] = p.a.prep(op, []Desc{p.mine.desc(i*size, size)}, []Desc{p.theirs.desc(i*size, size)}, "bob").warm()
				}
				before := p.a.core.Counters()
				next, throughGo, failed := 0, 0, 0
				require.Zero(t, testing.AllocsPerRun(turns*n, func() {
					x := all[next%n]
					next++
					for x.check() == inProg {
					}
					if x.check() != done {
						failed++
					}
					if _, taken := p.a.core.Repost(x.slot, x.handle, false, nil); !taken { // the session has changed since its last post
						throughGo++
						x.post()
					}
				}))
				require.LessOrEqual(t, throughGo, n, "a change of the session costs a request one post through Go")
				require.Zero(t, failed)
				for _, x := range all {
					require.Equal(t, done, x.wait())
				}
				after := p.a.core.Counters()
				require.EqualValues(t, throughGo, after["to_c_post"]-before["to_c_post"])
				require.EqualValues(t, turns*n+1-throughGo, after["reposts"]-before["reposts"], "AllocsPerRun runs once before it counts")
				p.same()
			})
		}
	}
}

// A post sits in a system call. The session changes all the same, and the post's permission is gone when it returns.
func TestPostThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	p := h.pair(4096)
	x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).warm()
	p.a.rail().Block(true)
	defer p.a.rail().Block(false)
	returned := make(chan bool, 1)
	go func() { returned <- x.again("n") }()
	slot := x.record().Slot()
	until(t, "the post is in progress", slot.Posting)
	bob, changed := p.a.remote("bob"), make(chan bool)
	peer := bob.Peer()
	go func() {
		bob.change(func() {})
		close(changed)
	}()
	select {
	case <-changed:
	case <-time.After(patience):
		require.Fail(t, "the session waits for the post")
	}
	require.True(t, slot.Posting() && peer.Posting())
	require.True(t, h.log.has("a post has not returned", "peer=bob"), h.log)
	require.Zero(t, len(returned))
	p.a.rail().Block(false)
	require.True(t, <-returned)
	require.Equal(t, done, x.wait())
	require.False(t, slot.HasCachedPost(), "its permission was withdrawn")
	require.False(t, peer.Posting() || x.again("n"))
	x.run("m")
	p.b.expect("ann:n", "ann:m")
	p.same()
}

// A transfer has failed. Its next post goes through Go, which logs the reason of the failure. The posts after it do not.
func TestRepostAfterFailure(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(256<<10, "xfer_timeout", "800ms", "cancel_timeout", "5s")
		x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).warm()
		p.b.rail().Stall()
		start := time.Now()
		require.True(h, x.again("never"))
		until(h, "the missing progress is logged", func() bool { x.check(); return h.log.has("no progress") })
		require.GreaterOrEqual(h, time.Since(start), 200*time.Millisecond)
		p.b.rail().Release()
		x.fails(errcode.ErrBackend)
		require.False(h, x.again("failed"))
		before := p.a.core.Counters()["to_c_post"]
		x.run("through Go")
		require.Equal(h, before+1, p.a.core.Counters()["to_c_post"])
		x.warm()
		require.True(h, x.again("without Go"))
		require.Equal(h, done, x.wait())
		p.same()
		p.b.expect("ann:through Go", "ann:without Go")
		require.Equal(h, 1, h.log.count("transfer timed out"))
	})
}

// A transfer that is posted all the time keeps its cached post. An idle one leaves the active list and loses its cached post. Its
// next post enters it again.
func TestCachedPostEnds(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	const deadline = 300 * time.Millisecond
	p := h.pair(4096, "xfer_timeout", deadline.String())
	x := p.a.whole(transfer.Write, p.mine, p.theirs).warm()
	posts, gaps := p.a.core.Counters()["to_c_post"], uint64(0)
	for start, last := time.Now(), time.Now(); time.Since(start) < time.Second; last = time.Now() {
		x.run()
		if time.Since(last) > deadline/2 {
			gaps++ // the host was busy: the cached post may be gone
		}
	}
	require.LessOrEqual(t, p.a.core.Counters()["to_c_post"], posts+gaps, "the 13 rounds of the sweeper drop no cached post")
	until(t, "the transfer is on the active list again", func() bool { x.run(); return p.a.transfers.ActiveLen() == 1 })
	d, _, err := p.a.Estimate(x.handle)
	require.NoError(t, err)
	require.Positive(t, d)
	until(t, "the transfer leaves the active list", func() bool { return p.a.transfers.ActiveLen() == 0 })
	require.False(t, x.record().Slot().HasCachedPost())
	posts = p.a.core.Counters()["to_c_post"]
	x.run()
	require.Equal(t, posts+1, p.a.core.Counters()["to_c_post"])
	require.Equal(t, 1, p.a.transfers.ActiveLen())
}

// reposters post transfers all the time, until they are stopped or refused. Each has a transfer and a part of the memory of its
// own.
type reposters struct {
	stop       atomic.Bool
	wg         sync.WaitGroup
	runs, past atomic.Uint64 // posts that ended well; posts without Go
	errs       sync.Map      // status codes seen
}

func (p *pair) repost(workers int) *reposters {
	r := &reposters{}
	part := len(p.mine.b) / workers
	for w := range workers {
		x := p.a.prep(transfer.Write, []Desc{p.mine.desc(w*part, part)}, []Desc{p.theirs.desc(w*part, part)}, "bob")
		local, remote := p.mine.b[w*part:][:part], p.theirs.b[w*part:][:part]
		r.wg.Go(func() {
			for i := 0; !r.stop.Load(); i++ {
				local[0], local[part-1] = byte(i), byte(i>>8)
				_, taken := p.a.core.Repost(x.slot, x.handle, i%2 == 0, []byte("r"))
				if taken {
					r.past.Add(1)
				} else if _, err := p.a.Engine.Post(x.handle, i%2 == 0, []byte("r")); err != nil {
					r.errs.Store(errcode.StatusOf(err), true)
					return
				}
				for x.check() == inProg {
				}
				if code := x.check(); code != done {
					r.errs.Store(errcode.Status(code), true)
				} else if r.runs.Add(1); local[0] != remote[0] || local[part-1] != remote[part-1] {
					p.a.t.Errorf("worker %d, run %d: the bytes differ", w, i)
					return
				}
			}
			if err := p.a.Release(x.handle); err != nil {
				p.a.t.Error(err)
			}
		})
	}
	return r
}

// end waits for the workers, and takes notifications meanwhile.
func (r *reposters) end(p *pair) {
	p.a.t.Helper()
	gone := make(chan struct{})
	go func() { r.wg.Wait(); close(gone) }()
	until(p.a.t, "all workers end", func() bool {
		if !p.b.life.Ending() {
			p.b.take()
		}
		select {
		case <-gone:
			return true
		default:
			return false
		}
	})
}

// Links, keys and rails change while transfers are posted all the time. A transfer that ends well has moved its bytes. Only a
// revocation makes transfers fail. Between the changes transfers are posted without Go.
func TestRepostUnderChanges(t *testing.T) {
	t.Parallel()
	changes := map[string]struct {
		rails  int
		errors bool
		change func(h *harness, p *pair, i int)
	}{
		"fence": {1, false, func(h *harness, p *pair, i int) { p.a.connected("bob").fenceAll("test") }},
		"keys": {1, false, func(h *harness, p *pair, i int) {
			m := p.b.memory(4096)
			there := m.seenBy(p.a)
			p.a.prep(transfer.Read, []Desc{p.mine.desc(0, 0)}, []Desc{there.desc(0, 0)}, "bob").post().wait()
			require.NoError(h, p.b.Deregister(m.md.region))
			require.NoError(h, p.a.UnloadRemote(there.md.region))
		}},
		"revoke": {1, true, func(h *harness, p *pair, i int) {
			own := &memory{owner: p.b, b: p.theirs.b, md: &metaObject{region: ownID(p)}}
			require.NoError(h, p.b.Deregister(own.md.region))
			before := string(p.theirs.b)
			p.b.take()
			require.True(h, before == string(p.theirs.b), "the memory has changed after its deregistration")
			own.register()
		}},
		"rail": {2, false, func(h *harness, p *pair, i int) { p.a.railChanged(fmt.Sprint("fake", i/2%2), i%2 == 1) }},
	}
	for name, c := range changes {
		t.Run(name, func(t *testing.T) {
			h := onRails(t, c.rails, fake.TCPCaps())
			p := h.pair(256 << 10)
			p.a.whole(transfer.Write, p.mine, p.theirs).warm()
			r := p.repost(4)
			for i := range rounds(5, 30) {
				past, runs := r.past.Load(), r.runs.Load()
				until(t, "transfers are posted again without Go", func() bool { p.b.take(); return r.past.Load() > past+4 && r.runs.Load() > runs+4 })
				c.change(h, p, i)
			}
			r.stop.Store(true)
			r.end(p)
			r.errs.Range(func(code, _ any) bool {
				require.True(t, c.errors && code == errcode.ErrBackend, "status %v", code)
				return true
			})
		})
	}
}

// One goroutine releases a transfer while another posts it. A late post is refused. All transfers are freed.
func TestReleaseUnderRepost(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	p := h.pair(64<<10, "release_wait", "1s")
	for range 50 {
		x := p.a.whole(transfer.Write, p.mine, p.theirs).warm()
		posting := make(chan struct{})
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			x.again("first")
			close(posting)
			for x.again("n") || x.check() >= 0 {
			}
		}()
		<-posting
		x.release()
		<-gone
		p.b.take()
	}
	p.a.released()
	require.Zero(t, p.a.transfers.Len())
}
