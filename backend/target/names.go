package target

import (
	"gorail/backend/peer"
	"gorail/backend/wire"
)

// names counts the sessions of each agent's name by engine. A name is a label: engines prove their id, and nobody proves
// a name, except with peer_names=certified. Under Sessions.mu.
type names map[string]map[wire.EngineID]int

// add counts a session. It reports whether another engine has a session under the same name.
func (n names) add(in *peer.In) (shared bool) {
	engines := n[in.Agent()]
	if engines == nil {
		engines = map[wire.EngineID]int{}
		n[in.Agent()] = engines
	}
	engines[in.Engine()]++
	return len(engines) > 1
}

func (n names) remove(in *peer.In) {
	engines := n[in.Agent()]
	if engines[in.Engine()]--; engines[in.Engine()] <= 0 {
		delete(engines, in.Engine())
	}
	if len(engines) == 0 {
		delete(n, in.Agent())
	}
}

// nameShared logs the first engine that begins a session under the name of another engine. Such an engine is served like
// any other: a process that restarts has its old name, also while its predecessor is only silent.
func (s *Sessions) nameShared(in *peer.In) {
	s.NameConflicts.Add(1)
	if !s.warnedNames.Swap(true) {
		s.Log.Warn("two engines use one agent name: both are served, and their notifications carry the same name (counter name_conflicts)",
			"peer", in.Agent(), "engine", in.Engine().String())
	}
}

// mayUse refuses an engine that uses the name of a loaded peer, if the option strict_names is on.
func (s *Sessions) mayUse(in *peer.In) error {
	if !s.Options.StrictNames {
		return nil
	}
	if id, loaded := s.Loaded(in.Agent()); loaded && id != in.Engine() {
		return &peer.RejectError{Code: wire.CodeIdentity,
			Text: "the target has loaded metadata of another engine under this agent's name (option strict_names): load the new metadata there first"}
	}
	return nil
}
