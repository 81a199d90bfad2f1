package transfer

import (
	"gorail/backend/access"
	"gorail/backend/errcode"
	"gorail/backend/region"
)

// The peer's keys come with the access that we have. A transfer that needs more is refused here, before anything is posted: where
// the device enforces the access it would break the link, and where we copy by ourselves nothing else enforces it.

// needs is the access that the transfer needs to the peer's memory.
func (t *Transfer) needs() access.Rights {
	if t.op == Read {
		return access.Read
	}
	return access.Write
}

// denied returns a region of the peer to which we lack access; nil: none, as far as keys are known. Under Peer.mu for reading.
func (t *Transfer) denied() *region.Region {
	for _, g := range t.remotes {
		if g.Keyed && !g.Access.Allow(t.needs()) {
			return g
		}
	}
	return nil
}

// whyDenied describes the lack of access to a region.
func (t *Transfer) whyDenied(g *region.Region) error {
	op := "WRITE to"
	if t.op == Read {
		op = "READ from"
	}
	return errcode.AccessDenied.Errorf("%s %#x+%d of agent %q is not allowed: the peer has registered this memory with %s=%s (its option, or the text in metaInfo)",
		op, g.Addr, g.Len, t.peer.Name, access.Option, g.Access)
}

// deny is the error of a post that lacks access to a region.
func (t *Transfer) deny(g *region.Region) error {
	return errcode.AccessDenied.Errorf("post: %w", t.whyDenied(g))
}
