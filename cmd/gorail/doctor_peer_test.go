package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"gorail/cmd/gorail/doctor"
	"gorail/test/skip"
	"gorail/test/testenv"
)

// serveDoctor starts gorail doctor --listen and returns its address. at runs the start in a thread of its own.
func serveDoctor(t *testing.T, c *exec.Cmd, at func(func())) string {
	t.Helper()
	log, err := c.StderrPipe()
	require.NoError(t, err)
	at(func() { err = c.Start() })
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	lines := bufio.NewReader(log)
	first, err := lines.ReadString('\n')
	require.NoError(t, err)
	go func() { _, _ = lines.WriteTo(os.Stderr) }()
	_, addr, found := strings.Cut(strings.TrimSpace(first), "--peer ")
	require.True(t, found, first)
	return addr
}

func here(f func()) { f() }

func listener(t *testing.T, env testenv.Env, addr string, vars ...string) *exec.Cmd {
	c := exec.Command(built(t, env), "doctor", "--listen", addr)
	c.Env = append(os.Environ(), vars...)
	return c
}

// TestDoctorPeer: two processes over loopback. A WRITE and a READ over tcp are verified.
func TestDoctorPeer(t *testing.T) {
	env := needs(t)
	vars := []string{"NIXL_PLUGIN_DIR=" + folder(t, env), "GORAIL_PROVIDER=tcp"}
	addr := serveDoctor(t, listener(t, env, "127.0.0.1:0", vars...), here)
	r, code := examine(t, env, vars, "--peer", addr)
	require.Zero(t, code, "%+v", firstFail(r))
	for _, id := range []string{"peer-address", "peer-connect", "peer-version", "peer-names", "peer-clock", "peer-host", "peer-control", "peer-data", "peer-mtu", "peer-transfer"} {
		got := find(r, id)
		require.NotEmpty(t, got, id)
		require.Equal(t, doctor.Pass, got[0].Status, "%+v", got)
	}
	require.Regexp(t, `^tcp/lo to tcp/lo: WRITE \d+\.\d\d GB/s, READ \d+\.\d\d GB/s, bytes compared`, find(r, "peer-transfer")[0].Text)
}

// TestDoctorPeerNames: UCX is GORAIL at the peer alone.
func TestDoctorPeerNames(t *testing.T) {
	env := needs(t)
	addr := serveDoctor(t, listener(t, env, "127.0.0.1:0", "NIXL_PLUGIN_DIR="+folder(t, env, "UCX")), here)
	r, code := examine(t, env, []string{"NIXL_PLUGIN_DIR=" + folder(t, env)}, "--peer", addr)
	require.Equal(t, 1, code)
	require.Equal(t, "peer-names", firstFail(r).ID, "%+v", firstFail(r))
	require.Contains(t, firstFail(r).Text, "UCX is NIXL's own here and GORAIL at the peer")
}

// TestDoctorPeerIdentity: the peer demands an identity that this side lacks. NIXL's error has no cause; the plugin's log has.
func TestDoctorPeerIdentity(t *testing.T) {
	env := needs(t)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte(strings.Repeat("0123456789abcdef", 4)), 0o600))
	vars := []string{"NIXL_PLUGIN_DIR=" + folder(t, env), "GORAIL_PROVIDER=tcp"}
	addr := serveDoctor(t, listener(t, env, "127.0.0.1:0", append(vars, "GORAIL_SECRET_FILE="+secret, "GORAIL_REQUIRE_IDENTITY=on")...), here)
	r, code := examine(t, env, vars, "--peer", addr)
	require.Equal(t, 1, code)
	require.Equal(t, "peer-transfer", firstFail(r).ID, "%+v", firstFail(r))
	require.Contains(t, firstFail(r).Text, "secret_file")
	r, code = examine(t, env, append(vars, "GORAIL_SECRET_FILE="+secret), "--peer", addr)
	require.Zero(t, code, "%+v", firstFail(r))
}

// TestDoctorPeerUser: the peer on this host runs as another user.
func TestDoctorPeerUser(t *testing.T) {
	env := needs(t)
	skip.UnlessRoot(t, "another user")
	bin := filepath.Join(t.TempDir(), "gorail")
	text, err := os.ReadFile(built(t, env))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(bin, text, 0o755))
	for dir := filepath.Dir(bin); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	c := exec.Command(bin, "doctor", "--listen", "127.0.0.1:0")
	c.Dir, c.Env = "/", append(os.Environ(), "HOME=/tmp")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
	addr := serveDoctor(t, c, here)
	r, code := examine(t, env, []string{"NIXL_PLUGIN_DIR=" + folder(t, env)}, "--peer", addr)
	require.Equal(t, 1, code)
	require.Equal(t, "peer-host", firstFail(r).ID, "%+v", firstFail(r))
	require.Contains(t, firstFail(r).Text, "users differ (0 here, 54321 there)")
}

// pair is two network namespaces with a wire between them.
type pair struct{ a, b netns.NsHandle }

// inside runs f in a thread of a namespace. The thread ends with it.
func inside(ns netns.NsHandle, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if netns.Set(ns) == nil {
			f()
		}
	}()
	<-done
}

func wire(t *testing.T) pair {
	t.Helper()
	var p pair
	var err error
	make := func(ns *netns.NsHandle) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			*ns, err = netns.New()
		}()
		<-done
		skip.OrFail(t, err)
		t.Cleanup(func() { _ = ns.Close() })
	}
	make(&p.a)
	make(&p.b)
	inside(p.a, func() {
		err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire0"}, PeerName: "wire1", PeerNamespace: netlink.NsFd(p.b)})
	})
	skip.OrFail(t, err)
	for ns, is := range map[netns.NsHandle][2]string{p.a: {"wire0", "10.98.0.1/24"}, p.b: {"wire1", "10.98.0.2/24"}} {
		h, err := netlink.NewHandleAt(ns)
		require.NoError(t, err)
		for _, name := range []string{"lo", is[0]} {
			l, err := h.LinkByName(name)
			require.NoError(t, err)
			if name != "lo" {
				addr, err := netlink.ParseAddr(is[1])
				require.NoError(t, err)
				require.NoError(t, h.AddrAdd(l, addr))
			}
			require.NoError(t, h.LinkSetUp(l))
		}
		h.Close()
	}
	return p
}

// TestDoctorPeerFirewall: the peer's host drops what its port of data_port sends. The line names address and port. Without the
// drop nothing fails.
func TestDoctorPeerFirewall(t *testing.T) {
	env := needs(t)
	skip.UnlessRoot(t, "network namespaces")
	p := wire(t)
	vars := []string{"NIXL_PLUGIN_DIR=" + folder(t, env), "GORAIL_PROVIDER=tcp", "GORAIL_DATA_PORT=7000-7003"}
	addr := serveDoctor(t, listener(t, env, "10.98.0.2:0", vars...), func(f func()) { inside(p.b, f) })
	look := func() (r *doctor.Report, code int) {
		inside(p.a, func() { r, code = examine(t, env, vars, "--peer", addr) })
		require.NotNil(t, r)
		return r, code
	}
	r, code := look()
	require.Zero(t, code, "%+v", firstFail(r))
	require.Contains(t, find(r, "peer-mtu")[0].Text, "path MTU 1500")

	h, err := netlink.NewHandleAt(p.b)
	require.NoError(t, err)
	defer h.Close()
	rule := netlink.NewRule()
	rule.Priority, rule.Type, rule.IPProto, rule.Sport = 10, syscall.RTN_BLACKHOLE, syscall.IPPROTO_TCP, netlink.NewRulePortRange(7000, 7000)
	skip.OrFail(t, h.RuleAdd(rule))
	r, code = look()
	require.Equal(t, 1, code)
	require.Equal(t, "peer-data", firstFail(r).ID, "%+v", firstFail(r))
	require.Contains(t, firstFail(r).Text, "cannot connect from 10.98.0.1 to 10.98.0.2:7000: no answer: the packets are dropped")
}
