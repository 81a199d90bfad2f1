package broken

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gorail/test/lab"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"gorail/gorail/doctor"
	"gorail/gorail/doctor/peer"
	"gorail/gorail/door"
	"gorail/gorail/side"
	"gorail/test/skip"
)

var peers = []setup{
	{name: "DNS name without address", made: "--peer gorail-peer.invalid in a network namespace without a name server", id: "peer-address", says: "gorail-peer.invalid has no address", remedy: "a line in /etc/hosts", try: noAddress},
	{name: "nobody listens at the peer", made: "--peer with a port that nobody has", id: "peer-connect", says: "connection refused", remedy: "gorail doctor --listen there", user: true,
		try: func(s *scene, remedied bool) found {
			s.set("GORAIL_PROVIDER=tcp")
			if remedied {
				return s.doctor("--peer", s.listen("127.0.0.1:0"))
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(s, err)
			require.NoError(s, l.Close())
			return s.doctor("--peer", l.Addr().String())
		}},
	{name: "alias against stock", made: "gorail plugins --as UCX at the peer alone", id: "peer-names", says: "UCX is NIXL's own here and GORAIL at the peer", remedy: "the same --as on both sides",
		user: true, quick: true, try: alias},
	{name: "clock skew", made: "imitated: the peer's process says a time that is two minutes ahead (no namespace has the time of day)", id: "peer-clock", says: "certificates may be refused as expired or not yet valid",
		remedy: "the right time", user: true, try: clock},
	{name: "other user", made: "the peer as user 54321 of this host", id: "peer-host", says: "users differ (0 here, 54321 there)", remedy: "both as one user", quick: true, try: otherUser},
	{name: "other network namespace", made: "the peer in a network namespace of its own, with a wire; GORAIL_LOCAL_DIR=off", id: "peer-host", says: "one host, and the network namespaces differ", remedy: "GORAIL_LOCAL_DIR of one folder in both",
		try: otherNetwork},
	{name: "firewall on the data port", made: "two network namespaces with a wire; the peer's drops TCP from port 7000, the data_port", id: "peer-data",
		says: "cannot connect from 10.98.0.1 to 10.98.0.2:7000: no answer: the packets are dropped", remedy: "open the port", quick: true, try: firewall},
	{name: "one rail down", made: "a network namespace with two wires, one of them down", id: "rails-waiting", says: "tcp/wire1 would be a rail and is down", remedy: "ip link set wire1 up", try: railDown},
	{name: "no NIXL wheel", made: "--peer without NIXL_WHEEL_DIR, no python3 in PATH, and the tool in a folder of its own", id: "peer-transfer", says: "python3 here finds no NIXL wheel", remedy: "NIXL_WHEEL_DIR", user: true,
		try: func(s *scene, remedied bool) found {
			s.set("GORAIL_PROVIDER=tcp")
			addr := s.listen("127.0.0.1:0")
			if !remedied {
				s.set("NIXL_WHEEL_DIR=", "PATH="+s.temp(), "GORAIL_PLUGIN_DIR="+s.env.PluginDir)
				text, err := os.ReadFile(s.tool)
				require.NoError(s, err)
				s.tool = s.file("gorail", string(text))
			}
			return s.doctor("--peer", addr)
		}},
	{name: "no identity for a peer that demands one", made: "require_identity=on and secret_file at the peer alone", id: "peer-transfer", says: "secret_file", remedy: "secret_file on both sides",
		user: true, quick: true, try: identity},
}

func noAddress(s *scene, remedied bool) found {
	s.set("GORAIL_PROVIDER=tcp")
	a, _ := s.wires(0)
	s.before(network(a))                                       // no name server answers there
	_, port, err := net.SplitHostPort(s.listen("127.0.0.1:0")) // with the token
	require.NoError(s, err)
	if remedied {
		s.before(bind(s.file("hosts", "127.0.0.1 localhost gorail-peer.invalid\n"), "/etc/hosts"))
	}
	return s.doctor("--peer", "gorail-peer.invalid:"+port)
}

func alias(s *scene, remedied bool) found {
	names := []string{"--wheel", s.env.WheelDir, "--as", "UCX"}
	s.set("GORAIL_PROVIDER=tcp")
	here := s.vars
	s.set("NIXL_PLUGIN_DIR=" + s.folder(names...))
	addr := s.listen("127.0.0.1:0")
	if !remedied {
		s.vars = here
	}
	return s.doctor("--peer", addr)
}

// skewed is a peer whose clock is ahead.
type skewed struct {
	*peer.Server
	ahead time.Duration
}

// Now is the time there.
func (s *skewed) Now(_ side.None, out *time.Time) error {
	*out = time.Now().Add(s.ahead)
	return nil
}

const envAhead = "GORAIL_TEST_AHEAD"

// serveSkewed is a process of a peer.
func serveSkewed() error {
	ahead, err := time.ParseDuration(os.Getenv(envAhead))
	if err != nil {
		return err
	}
	return side.Serve(&skewed{&peer.Server{Server: side.New()}, ahead}, nil)
}

func clock(s *scene, remedied bool) found {
	self, err := os.Executable()
	require.NoError(s, err)
	s.set("GORAIL_PROVIDER=tcp")
	tool := s.tool
	s.tool = self
	vars := s.vars
	s.set(envAhead+"="+map[bool]string{false: "2m", true: "0s"}[remedied], envListen+"=1")
	addr := s.listen("127.0.0.1:0")
	s.tool, s.vars = tool, vars
	return s.doctor("--peer", addr)
}

// envListen makes this program gorail doctor --listen with such processes.
const envListen = "GORAIL_TEST_LISTEN"

func listenSkewed() error {
	if err := os.Unsetenv(envListen); err != nil {
		return err
	}
	l, err := door.Listen(os.Args[len(os.Args)-1], os.Stderr)
	if err != nil {
		return err
	}
	l.Announce("serving gorail doctor --peer")
	return peer.Listen(l, nil)
}

func otherUser(s *scene, remedied bool) found {
	text, err := os.ReadFile(s.tool)
	require.NoError(s, err)
	open, tool := s.file("gorail", string(text)), s.tool
	if !remedied {
		s.tool = open
		s.shell = []string{"cd /", "export HOME=/tmp"}
		s.user = &syscall.Credential{Uid: 54321, Gid: 54321}
	}
	addr := s.listen("127.0.0.1:0")
	s.tool, s.shell, s.user = tool, nil, nil
	return s.doctor("--peer", addr)
}

// wires makes two hosts with wires wire0, wire1 and so on between them.
func (s *scene) wires(n int) (a, b *lab.Host) {
	s.Helper()
	var names []string
	for i := range n {
		names = append(names, "wire"+strconv.Itoa(i))
	}
	return lab.Two(s, 98, names...)
}

func otherNetwork(s *scene, remedied bool) found {
	at := "off"
	if remedied {
		at = s.meet(0o755)
	}
	return s.apart(at, at)
}

// block drops what a host sends from these TCP ports, as a firewall between the hosts does.
func (s *scene) block(h *lab.Host, first, last uint16) {
	s.Helper()
	rule := netlink.NewRule()
	rule.Priority, rule.Type, rule.IPProto, rule.Sport = 10, syscall.RTN_BLACKHOLE, syscall.IPPROTO_TCP, netlink.NewRulePortRange(first, last)
	skip.OrFail(s, h.NL.RuleAdd(rule))
}

func firewall(s *scene, remedied bool) found {
	a, b := s.wires(1)
	s.set("GORAIL_PROVIDER=tcp", "GORAIL_DATA_PORT=7000-7003")
	s.steps = []func() error{network(b)}
	addr := s.listen("10.98.0.2:0")
	if !remedied {
		s.block(b, 7000, 7000)
	}
	s.steps = []func() error{network(a)}
	f := s.doctor("--peer", addr)
	if remedied {
		i := slices.IndexFunc(f.report.Checks, func(c doctor.Check) bool { return c.ID == "peer-mtu" })
		require.GreaterOrEqual(s, i, 0)
		require.Contains(s, f.report.Checks[i].Text, "path MTU 1500")
	}
	return f
}

func railDown(s *scene, remedied bool) found {
	a, _ := s.wires(2)
	if !remedied {
		a.Cut("wire1")
	}
	s.set("GORAIL_PROVIDER=tcp")
	s.before(network(a))
	return s.doctor()
}

func identity(s *scene, remedied bool) found {
	secret := "GORAIL_SECRET_FILE=" + filepath.Join(s.TempDir(), "secret")
	_, file, _ := strings.Cut(secret, "=")
	require.NoError(s, os.WriteFile(file, []byte(strings.Repeat("0123456789abcdef", 4)), 0o600))
	s.set("GORAIL_PROVIDER=tcp")
	vars := s.vars
	s.set(secret, "GORAIL_REQUIRE_IDENTITY=on")
	addr := s.listen("127.0.0.1:0")
	s.vars = vars
	if remedied {
		s.set(secret)
	}
	return s.doctor("--peer", addr)
}
