package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// side is one end of a stream, driven by the test.
type side struct {
	*stream
	env    *streamEnv
	got    chan wire.Frame
	sought chan bool // searches, urgent or not; nil at a target
	fail   error     // the result of handling the next frames
	handle func()    // called for each frame; may be nil
	tasks  sync.WaitGroup
}

func (s *side) Handle(f wire.Frame) error {
	s.got <- f
	if s.handle != nil {
		s.handle()
	}
	return s.fail
}

func (s *side) Reconnect(urgent bool, _ netip.Addr) {
	select {
	case s.sought <- urgent:
	default: // a search is already pending
	}
}

const timeout = 4 * time.Second

func newSide(t *testing.T, inbound bool) *side {
	s := &side{got: make(chan wire.Frame, 100)}
	s.env = &streamEnv{Ctx: t.Context(), Log: slog.New(slog.DiscardHandler), PeerTimeout: timeout, Heartbeat: timeout, QueueLimit: 1 << 20,
		Spawn: func(f func()) bool { s.tasks.Go(f); return true }, Shed: func() {}, Heard: func() {},
		Acks: func(net.Conn, time.Duration) bool { return false }}
	var reconnect reconnectFunc
	if !inbound {
		s.sought = make(chan bool, 1)
		reconnect = s.Reconnect
	}
	s.stream = newStream(s.env, "the other side", Hello, s.Handle, reconnect)
	return s
}

// run starts a stream on a connection.
func (s *side) run(t *testing.T, c net.Conn) {
	require.True(t, s.Attach(c, netip.AddrPort{}))
	require.True(t, s.Start(&trust.Secret{1}, nil))
	s.tasks.Go(func() { s.Run(func() error { return nil })() })
}

// ends waits until both have ended.
func ends(sides ...*side) {
	for _, s := range sides {
		s.End(Closed, ErrClosed, nil)
		s.tasks.Wait()
	}
}

// joined returns both ends of a stream over a pipe.
func joined(t *testing.T) (out, in *side, here, there net.Conn) {
	out, in = newSide(t, false), newSide(t, true)
	here, there = net.Pipe()
	out.run(t, here)
	in.run(t, there)
	return out, in, here, there
}

// resume continues over another connection, as a Resume and its answer do.
func resume(t *testing.T, out, in *side) {
	here, there := net.Pipe()
	r := &wire.Resume{}
	out.Do(func(l lockedStream) { l.Commit(r, trust.Binding{}) })
	var got uint64
	in.Do(func(l lockedStream) {
		code, text := l.Refuses(r, trust.Binding{})
		require.Zero(t, code, text)
		got = l.Resumed(trust.Binding{}).Got
		l.Replace(newStreamConn(there, netip.AddrPort{}, nil), r)
	})
	out.Do(func(l lockedStream) { require.True(t, l.Resume(newStreamConn(here, netip.AddrPort{}, nil), got)) })
}

func id(f wire.Frame) uint64 { return f.(*wire.Drain).Next }

// A connection that breaks loses no frame and duplicates none.
func TestFramesOutliveConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, in, here, _ := joined(t)
		defer ends(out, in)
		out.Send(&wire.Drain{Next: 1})
		require.Equal(t, uint64(1), id(<-in.got))
		here.Close()
		require.False(t, <-out.sought)
		out.Send(&wire.Drain{Next: 2})
		in.Send(&wire.Drain{Next: 3})
		synctest.Wait()
		out.Do(func(l lockedStream) { assert.False(t, l.Connected()) })
		resume(t, out, in)
		require.Equal(t, uint64(2), id(<-in.got))
		require.Equal(t, uint64(3), id(<-out.got))
		time.Sleep(timeout) // heartbeats are due at this moment
		synctest.Wait()
		assert.Zero(t, out.Held()+in.Held(), "all is acknowledged")
		assert.Equal(t, []State{Ready, Ready}, []State{out.State(), in.State()})
		assert.Empty(t, in.got)
		assert.Equal(t, uint64(1), out.env.Count.Resumed.Load())
		out.Do(func(l lockedStream) { assert.Equal(t, uint64(3), l.Progress()) })
	})
}

// A Resume without the proof, or an outdated one, resumes nothing.
func TestRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, in, _, _ := joined(t)
		x, secret := trust.Binding{9}, trust.Secret{1}
		refused := func(change func(*wire.Resume)) (code wire.Code) {
			r := &wire.Resume{Try: 1}
			change(r)
			r.Mac = secret.ResumeMac(x, r.Session, r.Try, r.Got)
			in.Do(func(l lockedStream) { code, _ = l.Refuses(r, trust.Binding{9}) })
			return code
		}
		assert.Zero(t, refused(func(*wire.Resume) {}))
		secret[5]++
		assert.Equal(t, wire.CodeToken, refused(func(*wire.Resume) {}), "another secret")
		secret[5]--
		x[3]++
		assert.Equal(t, wire.CodeToken, refused(func(*wire.Resume) {}), "made for another connection")
		x[3]--
		assert.Equal(t, wire.CodeBusy, refused(func(r *wire.Resume) { r.Try = 0 }))
		assert.Equal(t, wire.CodeSession, refused(func(r *wire.Resume) { r.Got = 1 }))
		ends(out, in)
		assert.Equal(t, wire.CodeSession, refused(func(*wire.Resume) {}))
		assert.Equal(t, wire.CodeBusy, func() (code wire.Code) {
			newSide(t, true).Do(func(l lockedStream) { code, _ = l.Refuses(&wire.Resume{}, trust.Binding{}) })
			return code
		}())
	})
}

// The session's secret is overwritten when the session ends, however it ends, and proves nothing afterwards. A session
// that is over takes no secret.
func TestSecretIsWiped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, in, _, _ := joined(t)
		x := trust.Binding{9}
		for _, s := range []*side{out, in} {
			s.Do(func(l lockedStream) {
				answer := l.Resumed(x)
				assert.True(t, l.Answers(answer, x))
				assert.Equal(t, trust.Secret{1}, *s.resume.secret)
			})
		}
		out.End(Closed, ErrClosed, out.Bye("going"))
		synctest.Wait()
		for _, s := range []*side{out, in} {
			s.Do(func(l lockedStream) {
				assert.True(t, l.State().Over())
				assert.True(t, *s.resume.secret == trust.Secret{}, "wiped")
				assert.False(t, l.Answers(&wire.Resumed{Mac: (&trust.Secret{}).ResumedMac(x, 0)}, x), "everybody knows a wiped secret")
				r := &wire.Resume{Try: 1, Mac: (&trust.Secret{}).ResumeMac(x, 0, 1, 0)}
				code, _ := l.Refuses(r, x)
				assert.Equal(t, wire.CodeSession, code)
			})
		}
		ends(out, in)
		late := &trust.Secret{1}
		assert.False(t, out.Start(late, nil))
		assert.True(t, *late == trust.Secret{})
		newSide(t, true).End(Lost, ErrDropped, nil) // without a secret
	})
}

// An initiator whose peer is silent looks for another connection, meanwhile keeps its own, and gives up after
// PeerTimeout.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newSide(t, false)
		here, there := net.Pipe()
		defer there.Close()
		out.run(t, here)
		go func() { // reads everything and sends nothing
			for b := make([]byte, 4096); ; {
				if _, err := there.Read(b); err != nil {
					return
				}
			}
		}()
		start := time.Now()
		require.False(t, <-out.sought)
		assert.Equal(t, timeout/3, time.Since(start))
		out.Do(func(l lockedStream) { assert.True(t, l.Connected()) })
		out.tasks.Wait()
		state, cause := out.Ended()
		assert.Equal(t, Lost, state)
		assert.ErrorIs(t, cause, ErrSilent)
		assert.NotErrorIs(t, cause, ErrDead)
		assert.InDelta(t, timeout, time.Since(start), float64(timeout/8))
	})
}

// How one side ends, and the error that the other side gets.
func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(out, in *side)
		want error
		text string
	}{
		"goodbye":     {func(out, _ *side) { out.End(Closed, ErrClosed, out.Bye("enough")) }, ErrPeerClosed, "enough"},
		"engine ends": {func(out, _ *side) { out.env.Gone.Store(true); out.End(Closed, ErrClosed, out.Bye("")) }, ErrDead, ""},
		"handler failed": {func(out, in *side) {
			in.fail = errors.Join(ErrHandler, errors.New("no such thing"))
			out.Send(&wire.Drain{})
		}, ErrHandler, "no such thing"},
		"out of order": {func(_, in *side) { in.End(Lost, in.Unexpected(&wire.Hello{}), nil) }, ErrProtocol, "hello"},
		"overflow":     {func(_, in *side) { in.Send(&wire.Revoke{Regions: make([]uint64, 1<<18)}) }, ErrOverflow, "1 MiB"},
		"hangs up":     {func(out, _ *side) { out.Abort() }, ErrDropped, "process ended"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out, in, _, _ := joined(t)
				c.end(out, in)
				in.tasks.Wait()
				state, cause := in.Ended()
				assert.Equal(t, Lost, state)
				assert.ErrorIs(t, cause, c.want)
				assert.ErrorContains(t, cause, c.text)
				ends(out)
				assert.Zero(t, in.Held()+int(in.env.Held.Load()), "all memory is released")
			})
		})
	}
}

// A panic of a handler ends only its own stream.
func TestGuard(t *testing.T) {
	e := newSide(t, true).env
	err := e.Guard("bob", "hello", func() error { panic("out of luck") })
	assert.ErrorIs(t, err, ErrHandler)
	assert.ErrorContains(t, err, "bob: panic in hello: out of luck")
	assert.NoError(t, e.Guard("bob", "hello", func() error { return nil }))
}

// A process that has ended before the session begins ends the session at once.
func TestWatchProcess(t *testing.T) {
	s := newSide(t, false)
	p := Self()
	p.Start-- // another process had our pid
	s.WatchProcess(p)
	state, cause := s.Ended()
	assert.Equal(t, Lost, state)
	assert.ErrorIs(t, cause, ErrDead)
	assert.ErrorContains(t, cause, fmt.Sprint(p.PID))
	assert.ErrorIs(t, s.Context().Err(), context.Canceled)
}

// How many frames two idle ends exchange in an hour: none if both watch the process of the other, and a ping with its answer from each in 15 s at most else. A
// frame is then acknowledged as soon as ever.
func TestIdle(t *testing.T) {
	for name, c := range map[string]struct {
		watched bool
		most    uint64
	}{"watched": {true, 0}, "elsewhere": {false, 4 * 3600 / 15}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out, in := newSide(t, false), newSide(t, true)
				for _, s := range []*side{out, in} {
					s.env.PeerTimeout, s.env.Heartbeat, s.signs.running = time.Minute, 5*time.Second, c.watched
				}
				here, there := net.Pipe()
				out.run(t, here)
				in.run(t, there)
				defer ends(out, in)
				sent := func() uint64 { return out.env.Count.FramesSent.Load() + in.env.Count.FramesSent.Load() }
				time.Sleep(time.Minute)
				before := sent()
				time.Sleep(time.Hour)
				assert.LessOrEqual(t, sent()-before, c.most)
				if !c.watched {
					assert.GreaterOrEqual(t, sent()-before, c.most/4, "firewalls forget silent connections")
				}
				assert.Empty(t, out.sought)
				out.Send(&wire.Drain{Next: 1})
				require.Equal(t, uint64(1), id(<-in.got))
				time.Sleep(2 * time.Second)
				assert.Zero(t, out.Held(), "acknowledged")
				assert.Equal(t, []State{Ready, Ready}, []State{out.State(), in.State()})
			})
		})
	}
}

// A peer that dies while nothing is outstanding, and whose host says nothing, is noticed within PeerTimeout.
func TestIdlePeerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newSide(t, false)
		out.env.PeerTimeout, out.env.Heartbeat = time.Minute, 5*time.Second
		here, there := net.Pipe()
		defer there.Close()
		out.run(t, here)
		answers := time.Now().Add(10 * time.Minute)
		go func() {
			for {
				f, err := wire.ReadFrame(there, 0)
				if err != nil {
					return
				}
				if p, ping := f.(*wire.Ping); ping && time.Now().Before(answers) {
					_ = wire.WriteFrame(there, &wire.Pong{Seq: p.Seq, Got: 0})
				}
			}
		}()
		time.Sleep(time.Until(answers))
		require.Equal(t, Ready, out.State())
		out.tasks.Wait()
		_, cause := out.Ended()
		assert.ErrorIs(t, cause, ErrSilent)
		assert.LessOrEqual(t, time.Since(answers), time.Minute+time.Second)
	})
}
