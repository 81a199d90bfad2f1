package broken

import (
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// agents are set-ups in which an agent's log has the line. The same transfer is verified with the remedy.
var agents = []setup{
	{name: "firewall on the data port, two agents", made: "two network namespaces with a wire; the target's drops TCP from all ports but its control_port; a WRITE of 1 MiB", id: logs, says: "a firewall?", remedy: "open the port", try: func(s *scene, remedied bool) found {
		a, b := s.wires(1)
		if !remedied {
			s.block(b, 1, 6999)
			s.block(b, 7001, 65534)
		}
		at := [2][]func() error{{network(a)}, {network(b)}}
		return s.pair(scenario{devices: "wire0", at: at, params: map[string]string{"connect_timeout": "2s"}, theirs: map[string]string{"control_port": "7000"}}, "session with a peer suspended", "data_port")
	}},
}

// scenario is where and how two agents run.
type scenario struct {
	devices        string
	at             [2][]func() error
	params, theirs map[string]string // of the initiator, added for the target
}

var limit = testenv.Patient(20 * time.Second)

// start starts an agent.
func (s *scene) start(name string, at []func() error, params map[string]string) (*worker.Agent, error) {
	var w *worker.Worker
	(&scene{T: s.T, steps: at}).aside(func() error {
		w = worker.Start(s.T, worker.Options{Env: s.env})
		return nil
	})
	return w.TryAgent(worker.AgentConfig{Name: name, Backend: s.env.Backend, ProgThread: true, Params: params})
}

// pair writes 1 MiB from one agent to another. If that fails, the line of the initiator's log that has all the words is found.
func (s *scene) pair(c scenario, words ...string) found {
	s.Helper()
	params := []map[string]string{{}, {}}
	for i := range params {
		for _, from := range []map[string]string{{"provider": "tcp", "devices": c.devices}, c.params, map[bool]map[string]string{true: c.theirs}[i == 1]} {
			for k, v := range from {
				params[i][k] = v
			}
		}
	}
	alice, err := s.start("alice", c.at[0], params[0])
	if err != nil {
		return s.logged(alice, words)
	}
	bob, err := s.start("bob", c.at[1], params[1])
	if err != nil {
		return s.logged(bob, words)
	}
	const size = 1 << 20
	a, b := alice.Buffer(size, 1), bob.Buffer(size, 2)
	bob.Polling(true)
	alice.Learn(bob)
	x := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
	status := x.Post()
	if status == nixlapi.InProgress {
		status = x.Wait(limit)
	}
	if status.Failed() {
		return s.logged(alice, words)
	}
	require.Equal(s, nixlapi.Success, status)
	b.Want(1)
	return found{}
}

// logged waits for a line of a process that has all the words: its output and its answers come over different pipes.
func (s *scene) logged(a *worker.Agent, words []string) (f found) {
	s.Helper()
	require.Eventually(s, func() bool {
		lines := strings.Split(strings.ReplaceAll(a.Output(), `\"`, `"`), "\n")
		i := slices.IndexFunc(lines, func(line string) bool {
			return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) })
		})
		if i >= 0 {
			f = found{id: logs, text: lines[i]}
		}
		return i >= 0
	}, limit, 10*time.Millisecond, "no line has all of %q:\n%s", words, a.Output())
	return f
}
