package peer

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/gorail/doctor"
	"gorail/gorail/door"
)

func facts() *Facts {
	return &Facts{Version: "1.0", Wire: 14, NIXL: "nixl_cu12-1.5.1", Names: map[string]bool{"GORAIL": true, "UCX": false}, UID: 1000, Boot: "b", PIDNS: "pid:[1]", NetNS: "net:[1]", SM: true}
}

// TestCompare changes one fact of the peer at a time.
func TestCompare(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Facts)
		ahead  time.Duration
		id     string
		want   doctor.Status
		says   string
		ways   ways
	}{
		"equal":             {func(*Facts) {}, 0, "peer-host", doctor.Pass, "one host", ways{}},
		"another protocol":  {func(f *Facts) { f.Wire = 11 }, 0, "peer-version", doctor.Fail, "protocols differ", ways{}},
		"another release":   {func(f *Facts) { f.Version = "1.1" }, 0, "peer-version", doctor.Warn, "1.1", ways{}},
		"another NIXL":      {func(f *Facts) { f.NIXL = "nixl_cu13-1.6.0" }, 0, "peer-version", doctor.Warn, "nixl_cu13-1.6.0", ways{}},
		"no wheel":          {func(f *Facts) { f.NIXL = "" }, 0, "peer-version", doctor.Warn, "no NIXL wheel", ways{}},
		"alias":             {func(f *Facts) { f.Names = map[string]bool{"GORAIL": true, "UCX": true} }, 0, "peer-names", doctor.Fail, "UCX is NIXL's own here and GORAIL at the peer", ways{}},
		"alias there alone": {func(f *Facts) { f.Names = map[string]bool{"GORAIL": true, "UCX": false, "UCCL": true} }, 0, "peer-names", doctor.Warn, "UCCL is GORAIL at the peer", ways{}},
		"no folder":         {func(f *Facts) { f.Names = nil }, 0, "peer-names", doctor.Pass, "", ways{}},
		"no such name":      {func(f *Facts) { f.Names = map[string]bool{"GORAIL": true} }, 0, "peer-names", doctor.Pass, "", ways{}},
		"clock":             {func(*Facts) {}, -2 * time.Minute, "peer-clock", doctor.Fail, "2m0s", ways{}},
		"clock, a little":   {func(*Facts) {}, 7 * time.Second, "peer-clock", doctor.Warn, "7s", ways{}},
		"user":              {func(f *Facts) { f.UID = 0 }, 0, "peer-host", doctor.Fail, "users differ (1000 here, 0 there): no shared memory: another user", ways{thereErr: errors.New("another user")}},
		"pid namespace":     {func(f *Facts) { f.PIDNS = "pid:[2]" }, 0, "peer-host", doctor.Pass, "pid namespaces differ (pid:[1], pid:[2]): ring", ways{there: "ring", back: "ring"}},
		"net namespace":     {func(f *Facts) { f.NetNS = "net:[2]" }, 0, "peer-host", doctor.Fail, "network namespaces differ (net:[1], net:[2]): no shared memory: no folder", ways{backErr: errors.New("no folder")}},
		"common folder":     {func(f *Facts) { f.NetNS = "net:[2]" }, 0, "peer-host", doctor.Pass, "network namespaces differ (net:[1], net:[2]): ring", ways{there: "ring", back: "ring"}},
		"Yama there":        {func(*Facts) {}, 0, "peer-host", doctor.Pass, "namespace: ring (Yama)", ways{back: "ring (Yama)"}},
		"sm not wanted":     {func(f *Facts) { f.SM, f.UID = false, 0 }, 0, "peer-host", doctor.Pass, "leaves out sm", ways{}},
		"another host":      {func(f *Facts) { f.Boot, f.UID = "c", 0 }, 0, "peer-host", doctor.Pass, "another host", ways{}},
	} {
		t.Run(name, func(t *testing.T) {
			peer, r := facts(), &doctor.Report{}
			c.change(peer)
			compare(r, facts(), peer, c.ahead, func() ways { return c.ways })
			for _, got := range r.Checks {
				if got.ID == c.id {
					require.Equal(t, c.want, got.Status, got.Text)
					require.Contains(t, got.Text, c.says)
				} else {
					require.Equal(t, doctor.Pass, got.Status, "%s: %s", got.ID, got.Text)
				}
			}
			require.Len(t, r.Checks, 4)
		})
	}
}

// TestPorts: a listener of a range answers, the next takes the next port, and a range without a free port is an error.
func TestPorts(t *testing.T) {
	a, err := listen(option.PortRange{})
	require.NoError(t, err)
	defer a.Close()
	port := uint16(a.Addr().(*net.TCPAddr).Port)
	p, err := connectTo("127.0.0.1", fmt.Sprint("127.0.0.1:", port), bulk)
	require.NoError(t, err)
	require.Positive(t, p.mtu)
	_, err = listen(option.PortRange{First: port, Last: port})
	require.ErrorContains(t, err, fmt.Sprintf("no free port in %d-%d", port, port))
	_, err = connectTo("127.0.0.1", fmt.Sprint("127.0.0.1:", port), most+1)
	require.ErrorIs(t, err, errLost, "more than a caller may send")
	require.NoError(t, a.Close())
	_, err = connectTo("", fmt.Sprint("127.0.0.1:", port), 1)
	require.Equal(t, "connection refused", cause(err))
	require.Contains(t, remedyOf(err, "x:1", "start it"), "start it")
}

func TestCause(t *testing.T) {
	require.Contains(t, cause(&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}), "dropped")
	require.Contains(t, remedyOf(&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, "192.0.2.1:7000", ""), "open TCP 192.0.2.1:7000")
	require.Equal(t, "connection refused", cause(fmt.Errorf("x: %w", syscall.ECONNREFUSED)))
	require.Equal(t, "other", cause(errors.New("other")))
}

// TestUnreachable: no address, and nobody who listens.
func TestUnreachable(t *testing.T) {
	r := &doctor.Report{}
	Check(r, &doctor.Host{}, "1.0", door.At("nosuch.invalid:1"))
	require.Equal(t, "peer-address", r.Checks[0].ID)
	require.True(t, r.Failed())

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	r = &doctor.Report{}
	Check(r, &doctor.Host{}, "1.0", door.At(addr))
	require.Equal(t, []any{"peer-connect", doctor.Fail}, []any{r.Checks[1].ID, r.Checks[1].Status})
	require.Contains(t, r.Checks[1].Text, addr+": connection refused")
}
