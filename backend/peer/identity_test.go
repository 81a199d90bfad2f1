package peer

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// knows gives a node an operator's identity: a file of secrets, one a line.
func knows(t *testing.T, secrets ...string) (path string, change func(*Config)) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "secret")
	write(t, path, secrets...)
	o, err := trust.Open(trust.Config{SecretFile: path})
	require.NoError(t, err)
	return path, func(c *Config) { c.Operator, c.Identity.Proves = o, true }
}

func write(t *testing.T, path string, secrets ...string) {
	t.Helper()
	text := ""
	for _, s := range secrets {
		text += strings.Repeat(s, 40) + "\n"
	}
	require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

// Both ends demand the identity. The one that holds nothing, or something else, learns why.
func TestIdentity(t *testing.T) {
	none := func(*Config) {}
	_, a := knows(t, "a")
	_, again := knows(t, "b", "a")
	_, b := knows(t, "b")
	for _, c := range []struct {
		name     string
		from, to func(*Config)
		refused  int // by 1: the target, 2: the initiator
	}{{"neither", none, none, 0}, {"both", a, a, 0}, {"the second line", a, again, 0}, {"another secret", a, b, 1}, {"not the initiator", none, a, 1},
		{"not the target", a, none, 2}} {
		t.Run(c.name, func(t *testing.T) {
			i, s := newInitiator(), newTarget()
			to, from := listen(t, s, c.to), listen(t, newTarget(), c.from)
			from.Dial(blob(to), 0, i)
			want[evOffers](t, i.events)
			if c.refused == 0 {
				want[evReady](t, i.events)
				return
			}
			err := want[evLost](t, i.events).err
			if c.refused == 1 {
				var r *RejectError
				require.ErrorAs(t, err, &r)
				assert.Equal(t, wire.CodeIdentity, r.Code)
				assert.True(t, r.Proved)
				assert.Empty(t, s.events, "no Hello reaches the handler")
				assert.Equal(t, uint64(1), to.Stats().BadIdentity)
			} else {
				assert.ErrorIs(t, err, ErrIdentity)
				assert.Equal(t, uint64(1), from.Stats().BadIdentity)
			}
			assert.ErrorContains(t, err, "secret_file")
		})
	}
}

// A secret is replaced line by line while a session lives. The session proves the new one over another connection, and
// its handlers notice nothing.
func TestIdentityIsProvedAgain(t *testing.T) {
	here, from := knows(t, "a")
	there, to := knows(t, "a")
	p := &pair{i: newInitiator(), s: newTarget()}
	p.to, p.from = listen(t, p.s, to, minute), listen(t, newTarget(), from, minute)
	p.connect(t)
	r := &multipath{pair: p}
	resumes := uint64(0)
	for _, step := range []struct {
		path    string
		secrets []string
	}{{there, []string{"a", "b"}}, {here, []string{"b", "a"}}, {here, []string{"b"}}, {there, []string{"b"}}} {
		n := p.from
		if step.path == there {
			n = p.to
		}
		before := n.cfg.Operator.Generation()
		write(t, step.path, step.secrets...)
		eventually(t, func() bool { return n.cfg.Operator.Generation() > before }, "the file is read again")
		n.renewals.look(time.Now())
		resumes++
		r.resumed(t, resumes)
		r.works(t)
	}
	assert.Zero(t, p.from.Stats().BadIdentity+p.to.Stats().BadIdentity)

	before := p.to.cfg.Operator.Generation()
	write(t, there, "c")
	eventually(t, func() bool { return p.to.cfg.Operator.Generation() > before }, "the file is read again")
	p.to.renewals.look(time.Now())
	err := want[evLost](t, p.i.events).err
	var why *RejectError
	require.ErrorAs(t, err, &why)
	assert.Equal(t, wire.CodeIdentity, why.Code)
}

// A session whose peer's certificate has expired ends, and one that is at half its life proves again.
func TestIdentityExpires(t *testing.T) {
	_, change := knows(t, "a")
	p := newPair(t, change, minute)
	now := time.Now()
	l := p.to.renewals
	eventually(t, func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.all) == 1 }, "listed")
	only := func() *renewal {
		l.mu.Lock()
		defer l.mu.Unlock()
		for r := range l.all {
			return r
		}
		return nil
	}
	l.proved(only(), trust.Peer{Until: now.Add(time.Hour)})
	l.look(now.Add(29 * time.Minute))
	assert.Zero(t, p.to.Stats().Resumed)
	l.look(now.Add(31 * time.Minute))
	(&multipath{pair: p}).resumed(t, 1)
	l.proved(only(), trust.Peer{Until: now.Add(time.Hour)})
	l.look(now.Add(time.Hour + trust.Slack + time.Minute))
	err := want[evGone](t, p.s.events).err
	assert.ErrorIs(t, err, ErrIdentity)
	assert.ErrorContains(t, want[evLost](t, p.i.events).err, "expired")
}

// A renewal whose dial takes longer than a target keeps the session of an initiator that hung up. The connection in use
// stays meanwhile.
func TestSlowRenewalKeepsTheSession(t *testing.T) {
	_, change := knows(t, "a")
	p := newPair(t, change, minute)
	dial, late := p.from.dial, time.NewTimer(2*time.Second)
	p.from.dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		select {
		case <-late.C:
			late.Reset(0)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return dial(ctx, to)
	}
	eventually(t, func() bool {
		p.from.renewals.mu.Lock()
		defer p.from.renewals.mu.Unlock()
		return len(p.from.renewals.all) == 1
	}, "listed")
	p.from.renewals.look(time.Now().Add(mostProofAge + time.Minute))
	r := &multipath{pair: p}
	for ; p.from.Stats().Resumed == 0; time.Sleep(10 * time.Millisecond) {
		r.works(t)
	}
	r.resumed(t, 1)
	r.works(t)
}
