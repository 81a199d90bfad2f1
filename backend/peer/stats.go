package peer

import (
	"sync/atomic"
)

// Stats is a snapshot of a node's counters. In, Out and HalfOpen are current numbers; the others never decrease.
type Stats struct {
	In, Out, HalfOpen uint64 // sessions of each direction, handshakes of unauthenticated connections

	AcceptStats
	SessionStats
	FrameStats
}

// AcceptStats count the handshakes of a target.
type AcceptStats struct {
	Accepted     uint64 // sessions accepted as the target
	Refused      uint64 // authenticated Hellos refused by the TargetHandler or by a bound of sessions
	BadToken     uint64 // wrong MAC
	BadFrame     uint64 // not our protocol, or closed before the Hello
	BadVersion   uint64 // another version of the protocol
	WrongEngine  uint64 // the Hello named another engine, for example one before a restart
	BadTLS       uint64 // connections with the token whose TLS handshake failed
	BadIdentity  uint64 // peers, of both directions, that did not prove the identity that the operator demands
	TimedOut     uint64 // handshakes that took too long
	MadeRoom     uint64 // handshakes of unauthenticated connections that were evicted
	AcceptErrors uint64 // accept failed, for example without descriptors
}

// SessionStats count the beginnings and ends of sessions and of their connections.
type SessionStats struct {
	Dialed      uint64 // sessions begun as the initiator
	Established uint64 // of these, sessions that became ready
	Resumed     uint64 // connections, of both directions, that replaced another one in their session
	Resent      uint64 // frames that were sent again after such a replacement
	BadResume   uint64 // resumes refused as the target: unknown session, wrong proof, impossible count
	Lost        uint64 // sessions of both directions that ended in Lost
	Closed      uint64 // and in Closed
	Overflows   uint64 // sessions that ended because a limit of queued frames was exceeded
	Stuck       uint64 // goroutines whose handler still ran when Close stopped waiting
}

// FrameStats count the frames of ready sessions.
type FrameStats struct {
	FramesSent, FramesReceived uint64
	BytesSent                  uint64
}

// counters are the node's own counters; the streams have others.
type counters struct {
	accepted, refused, badToken, badFrame, badVersion, wrongEngine, badTLS, badIdentity, timedOut, madeRoom, acceptErrors atomic.Uint64
	dialed, established, badResume, lost, closed, stuck                                                                   atomic.Uint64
}

// read returns all counters, without the current numbers.
func (c *counters) read(s *Counters) Stats {
	return Stats{
		AcceptStats: AcceptStats{
			Accepted: c.accepted.Load(), Refused: c.refused.Load(), BadToken: c.badToken.Load(), BadFrame: c.badFrame.Load(),
			BadVersion: c.badVersion.Load(), WrongEngine: c.wrongEngine.Load(), BadTLS: c.badTLS.Load(), BadIdentity: c.badIdentity.Load(), TimedOut: c.timedOut.Load(),
			MadeRoom: c.madeRoom.Load(), AcceptErrors: c.acceptErrors.Load(),
		},
		SessionStats: SessionStats{
			Dialed: c.dialed.Load(), Established: c.established.Load(), Resumed: s.Resumed.Load(), Resent: s.Resent.Load(),
			BadResume: c.badResume.Load(), Lost: c.lost.Load(), Closed: c.closed.Load(), Overflows: s.Overflows.Load(), Stuck: c.stuck.Load(),
		},
		FrameStats: FrameStats{FramesSent: s.FramesSent.Load(), FramesReceived: s.FramesReceived.Load(), BytesSent: s.BytesSent.Load()},
	}
}
