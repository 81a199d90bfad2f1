package engine

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"gorail/backend/core"
	"gorail/backend/host"
)

// sharing is an engine of a wide machine among the engines of its host. Its lock comes after that of a choice, before the roster's and rails.Shares'.
type sharing struct {
	e  *Engine
	by string // the variable that says the process's place among those of its host; "": none

	mu     sync.Mutex
	roster *host.Roster       // nil: it does not see the others
	used   map[string]float64 // by others, of each device; nil: unknown
	chosen bool               // the first choice was logged
	told   map[string]bool    // see once
}

// share has the engine choose devices that the other engines of this host use least. It comes before the choice. On a machine that is not wide it
// does nothing.
func (e *Engine) share() {
	if !e.rails.Wide() {
		return
	}
	if !e.opt.RailShare {
		e.log.Info("each agent of this host takes the same near devices", "why", "rail_share=off")
		return
	}
	s := &sharing{e: e, told: map[string]bool{}}
	if s.by, e.rails.Turn = ordinal(os.Getenv); s.by == "" { // of no weight beside what others are seen to use
		h := fnv.New32a()
		fmt.Fprint(h, os.Getpid(), " ", e.name)
		s.by, e.rails.Turn = "a hash of the process id and the agent's name", int(h.Sum32()>>1)
	}
	var err error
	var instead error
	if s.roster, instead, err = openRoster(e.opt.LocalDir); err != nil {
		s.unseen(err)
	} else if instead != nil {
		e.log.Info("the agents of other pods are not seen: devices are shared out among the agents that use another folder", "roster", s.roster.Path, "why", instead)
	}
	e.sharing, e.rails.Alone, e.rails.Used = s, s.alone, s.inUse
}

// podsFolder is a folder of the host that pods mount for their agents to meet: the default of local_dir.
const podsFolder = "/run/gorail"

// openRoster opens the roster of this host: in the folder where pods meet, else in one of this user. instead is why that of pods is not used.
func openRoster(localDir string) (r *host.Roster, instead, err error) {
	if localDir != "auto" && localDir != "off" {
		r, err = host.OpenRoster(localDir, 0, core.CloseInForks)
		return r, nil, err
	}
	const meant = os.ModeSticky | 0o002 // for all users. Another one may have been made by an agent, after other agents had looked
	if info, err := os.Lstat(podsFolder); localDir == "auto" && err == nil && info.Mode()&meant == meant {
		if r, instead = host.OpenRoster(podsFolder, 0, core.CloseInForks); instead == nil {
			return r, nil, nil
		}
	}
	r, err = host.OpenRoster(fmt.Sprint("/dev/shm/gorail-", os.Geteuid()), 0o700, core.CloseInForks)
	return r, instead, err
}

// ordinals are the variables in which launchers tell a process its number among those of its host, which is its GPU's, too.
var ordinals = []string{"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"}

// ordinal is the process's number among those of its host; by is empty if it is unknown.
func ordinal(getenv func(string) string) (by string, n int) {
	for _, name := range ordinals {
		if n, err := strconv.ParseUint(getenv(name), 10, 31); err == nil {
			return name, int(n)
		}
	}
	return "", 0
}

// unseen has the engine choose without the others. It runs before or in a choice. Under mu, or before the hooks are set.
func (s *sharing) unseen(why error) {
	if s.roster != nil {
		s.roster.Close()
	}
	s.roster, s.used = nil, nil
	s.e.log.Info("the agents of this host are not seen: devices are shared out by a number", "by", s.by, "number", s.e.rails.Turn, "why", why)
}

// alone is rails.Shares.Alone. One call at a time.
func (s *sharing) alone(choose func(used map[string]float64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.roster == nil {
		choose(nil)
		return
	}
	ran := false
	err := s.roster.Enter(func(others []host.Entry) host.Entry {
		s.saw(others)
		choose(s.used)
		ran = true
		return s.entry()
	})
	switch {
	case errors.Is(err, host.ErrRosterBusy):
		s.once("devices are chosen beside other agents that may choose at the same time", err)
	case host.Exhausted(err) || errors.Is(err, unix.ENOSPC): // the next choice shows it
		s.once("other agents do not see all devices that this one uses", err)
		if !ran {
			choose(s.used)
		}
	case err != nil:
		s.unseen(err)
		choose(nil)
	}
}

// once logs what happens instead of a choice among the others, once. Under mu.
func (s *sharing) once(what string, err error) {
	if !s.told[what] {
		s.told[what] = true
		s.e.log.Info(what, "err", err)
	}
}

// back enters the roster again after somebody has removed its files. Under mu.
func (s *sharing) back() {
	s.roster.Close()
	r, _, err := openRoster(s.e.opt.LocalDir)
	if err == nil {
		err = r.Update(s.entry())
	}
	if s.roster = r; err != nil {
		s.unseen(err)
	}
}

// entry is what the engine says of itself.
func (s *sharing) entry() host.Entry {
	return host.Entry{Weights: s.e.rails.Weights(), Text: fmt.Sprintf("agent %q, process %d", s.e.name, os.Getpid())}
}

// saw notes what others use. Under mu.
func (s *sharing) saw(others []host.Entry) {
	s.used = map[string]float64{}
	var texts []string
	for _, o := range others {
		texts = append(texts, o.Text)
		for device, w := range o.Weights {
			s.used[device] += w
		}
	}
	if !s.chosen {
		s.chosen = true
		s.e.log.Info("the agents of this host share its devices out: this one takes those that others use least", "roster", s.roster.Path, "others", texts[:min(len(texts), 8)],
			"count", len(texts))
	}
}

// inUse is rails.Set.Used.
func (s *sharing) inUse() []float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.roster == nil {
		return nil
	}
	if s.roster.Cleaned() {
		if s.back(); s.roster == nil {
			return nil
		}
	}
	if s.roster.Changed() {
		if others, err := s.roster.Others(); err == nil {
			s.saw(others)
		}
	}
	return s.e.rails.ByDevice(s.used)
}

// leave ends the engine's part: the others may take its devices.
func (s *sharing) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.roster != nil {
		s.roster.Close()
		s.roster = nil
	}
}
