package node

import (
	"fmt"
	"strings"
	"time"

	"gorail/gorail/door"
	"gorail/gorail/side"
	"gorail/internal/subprocess"
)

// openLimit is for a node to load NIXL and the backend, on starved processors too.
const openLimit = time.Minute

// Start starts a node on this host, or at the place of a listener if one is given, and opens it. exec is the process on this host.
func Start(in OpenArgs, there door.Place, exec func(subprocess.Options) (*subprocess.Client, error)) (c *subprocess.Client, out Peer, err error) {
	if there.Given() {
		var s *side.Side
		if s, err = side.DialFor(there, Service); err == nil {
			c = s.Client
		}
	} else {
		c, err = exec(subprocess.Options{Args: []string{Command}})
	}
	if err != nil {
		return nil, out, fmt.Errorf("%s: %w", in.Name, err)
	}
	if out, err = subprocess.Call[Peer](c, "Open", in, openLimit); err != nil {
		c.End(time.Second)
		if said := strings.TrimSpace(c.Output()); said != "" { // the backend's log says why
			err = fmt.Errorf("%w: %s", err, said[strings.LastIndexByte(said, '\n')+1:])
		}
		if strings.Contains(err.Error(), "can't find service") {
			err = fmt.Errorf("%s serves benchmarks alone: run gorail doctor --listen there", there.Addr)
		}
		return nil, out, fmt.Errorf("%s: %w", in.Name, err)
	}
	return c, out, nil
}

// Here starts a process of this host.
func Here(o subprocess.Options) (*subprocess.Client, error) { return subprocess.Start(o, Service) }
