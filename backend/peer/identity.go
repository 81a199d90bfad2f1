package peer

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// ErrIdentity marks the end of a session whose peer has not proved the identity that the operator demands.
var ErrIdentity = errors.New("the peer's identity is not proved")

// When the identities of a live session are proved again. The operator's files are looked at for it.
const (
	identityEvery = 5 * time.Second
	mostProofAge  = 24 * time.Hour
	renewAgain    = time.Minute // after a renewal that did not succeed, or of a certificate that is about to expire
)

// check checks the identity of the other end of a connection, and its name if a certificate must have it.
func (b *base) check(of trust.Role, c *SecureConn, id *wire.Identity, agent string) (trust.Peer, error) {
	p, err := b.cfg.Operator.Check(of, c.Bind, c.Ends, id)
	if err == nil && b.cfg.CertifiedNames && !p.Named(agent) {
		err = fmt.Errorf("the certificate has the names %v, and not the agent's name %q (option peer_names=certified)", p, clipText(agent))
	}
	if err != nil {
		b.count.badIdentity.Add(1)
		return p, fmt.Errorf("%w: %w", ErrIdentity, err)
	}
	return p, nil
}

// proveSelf returns our identity on a connection. of is the initiator's identity that a target answers.
func (b *base) proveSelf(as trust.Role, c *SecureConn, of *wire.Identity) (wire.Identity, error) {
	id, err := b.cfg.Operator.Prove(as, c.Bind, c.Ends, of)
	if err != nil {
		return id, fmt.Errorf("%w: this engine cannot prove its own: %w", ErrIdentity, err)
	}
	return id, nil
}

// renewals are the sessions whose identities are proved again: after a change of our files, at half the remaining life of
// the peer's certificate, and after a day. The session goes on over another connection, and its rails notice nothing.
type renewals struct {
	*base

	mu  sync.Mutex
	all map[*renewal]struct{}
}

// renewal is the last proof of one session. Guarded by renewals.mu.
type renewal struct {
	s          *stream   // constant
	renew      func()    // gets the session another connection; constant
	generation uint64    // of our files then
	until      time.Time // the peer's certificate expires; zero: it has none
	again      time.Time
}

func newRenewals(b *base) *renewals { return &renewals{base: b, all: make(map[*renewal]struct{})} }

// begin adds a session that has just been proved. The caller calls end when the session has ended. Without an operator's
// identity it does nothing.
func (l *renewals) begin(r *renewal, p trust.Peer) (end func()) {
	if !l.cfg.Operator.Wants() {
		return func() {}
	}
	l.proved(r, p)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[r] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.all, r)
	}
}

// proved records another proof.
func (l *renewals) proved(r *renewal, p trust.Peer) {
	now, generation := time.Now(), l.cfg.Operator.Generation()
	l.mu.Lock()
	defer l.mu.Unlock()
	r.generation, r.until, r.again = generation, p.Until, now.Add(mostProofAge)
	if half := now.Add(max(p.Until.Sub(now)/2, renewAgain)); !p.Until.IsZero() && half.Before(r.again) {
		r.again = half
	}
}

// run looks at all sessions until the node closes.
func (l *renewals) run() {
	tick := time.NewTicker(identityEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.look(time.Now())
		case <-l.env.Ctx.Done():
			return
		}
	}
}

// look ends the sessions whose peer's certificate has expired, and renews those that are due.
func (l *renewals) look(now time.Time) {
	generation := l.cfg.Operator.Generation()
	var due, over []*renewal
	l.mu.Lock()
	for r := range l.all {
		switch {
		case !r.until.IsZero() && now.After(r.until.Add(trust.Slack)):
			over = append(over, r)
		case r.generation != generation || now.After(r.again):
			due = append(due, r)
			r.generation, r.again = generation, now.Add(renewAgain)
		}
	}
	l.mu.Unlock()
	for _, r := range over {
		s := r.s
		err := fmt.Errorf("%w: %s: its certificate has expired, and no other has come (options tls_cert, tls_key at the peer)", ErrIdentity, s.Peer())
		s.End(Lost, err, s.Bye(err.Error()))
	}
	for _, r := range due {
		r.renew()
	}
}
