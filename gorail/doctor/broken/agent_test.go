package broken

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// agents are set-ups in which an agent's log has the line. The same transfer is verified with the remedy.
var agents = []setup{
	{name: "wrong device, an agent", made: "createBackend with devices=nosuch7", id: logs, says: "nosuch7", remedy: "devices=lo", user: true, quick: true,
		try: func(s *scene, remedied bool) found {
			return s.pair(scenario{devices: map[bool]string{false: "nosuch7", true: "lo"}[remedied]}, "level=ERROR", "nosuch7")
		}},
	{name: "data_port in use, an agent", made: "another process listens on the only port of data_port", id: logs, says: "option data_port=", remedy: "a wider range", user: true, try: portInUse},
	{name: "version skew, two agents", made: "imitated: the peer's metadata has the next protocol version", id: logs, says: "install the same GORAIL on both sides", remedy: "one release on both sides", user: true,
		try: versions},
	{name: "firewall on the data port, two agents", made: "two network namespaces with a wire; the target's drops TCP from all ports but its control_port; a WRITE of 1 MiB", id: logs, says: "a firewall?", remedy: "open the port", try: func(s *scene, remedied bool) found {
		w := s.wires(1)
		if !remedied {
			s.block(w.b, 1, 6999)
			s.block(w.b, 7001, 65534)
		}
		at := [2][]func() error{{network(w.a)}, {network(w.b)}}
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

func portInUse(s *scene, remedied bool) found {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(s, err)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	ports := fmt.Sprintf("%d-%d", port, port)
	if remedied {
		ports = fmt.Sprintf("%d-%d", port, min(port+200, 65535))
	}
	return s.pair(scenario{devices: "lo", params: map[string]string{"data_port": ports}}, "level=ERROR", "option data_port=")
}

// versions loads metadata of a real agent, and first changes its version.
func versions(s *scene, remedied bool) found {
	params := map[string]string{"provider": "tcp", "devices": "lo"}
	alice, err := s.start("alice", nil, params)
	require.NoError(s, err)
	bob, err := s.start("bob", nil, params)
	require.NoError(s, err)
	md := bob.Metadata()
	if !remedied {
		s.newer(md)
	}
	if _, err := alice.Load(md); err != nil {
		return s.logged(alice, []string{"level=ERROR", fmt.Sprintf("version %d, here %d", wire.Version+1, wire.Version)})
	}
	return found{}
}

// newer makes metadata that of the next protocol version. A connection blob ends with the checksum of the bytes before.
func (s *scene) newer(md []byte) {
	s.Helper()
	table := crc32.MakeTable(crc32.Castagnoli)
	at := bytes.Index(md, []byte{'G', 'R', 'C', wire.Version})
	require.GreaterOrEqual(s, at, 0)
	for end := at + 4; end+4 <= len(md); end++ {
		if crc32.Checksum(md[at:end], table) == binary.BigEndian.Uint32(md[end:]) {
			md[at+3]++
			binary.BigEndian.PutUint32(md[end:], crc32.Checksum(md[at:end], table))
			return
		}
	}
	s.Fatal("no connection blob in the metadata")
}
