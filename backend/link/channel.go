package link

import (
	"gorail/backend/core"
	"gorail/backend/provider"
	"gorail/backend/trust"
)

// Secrets derives what both ends of a session have, and nobody else.
type Secrets interface {
	LinkSecret(n trust.LinkName) *trust.LinkSecret
	KeySalt() [16]byte
}

// Channel is what the links of a session need of its control channel.
type Channel struct {
	Role    core.Role // ours
	Secrets           // of the session
}

// Security returns what only the two ends of a link know in its present epoch. Both ends must have given the link the same
// epoch and each other's ID. Under the lock of the link's session.
func (c Channel) Security(l *Link) provider.Security {
	n := trust.LinkName{Fabric: l.Rail.Device().Fabric, InitiatorRail: uint8(l.Rail.Index), TargetRail: uint8(l.Peer), InitiatorID: l.ID, TargetID: l.PeerID,
		Epoch: l.Epoch}
	if c.Role == core.Target {
		n.InitiatorRail, n.TargetRail, n.InitiatorID, n.TargetID = n.TargetRail, n.InitiatorRail, n.TargetID, n.InitiatorID
	}
	return provider.Security{Initiator: c.Role == core.Initiator, Keys: c.KeySalt(), Link: func(t trust.Ticket) *trust.LinkSecret {
		named := n
		named.Ticket = t
		return c.LinkSecret(named)
	}}
}
