package verbs

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/test/drive"
	imitation "gorail/test/verbs"
)

// life runs two rails from Discover to Close, or to the first error. Everything opened is closed.
func life(t *testing.T, o Options, mem []byte) (err error) {
	p := New(o)
	var eps []provider.Endpoint
	for range 2 {
		devs, err := p.Discover(context.Background(), provider.Filter{})
		if err != nil {
			return err
		}
		rail, err := p.Open(devs[0])
		if err != nil {
			return err
		}
		defer func() { require.NoError(t, rail.Close()) }()
		mr, err := rail.Register(drive.Addr(mem), uint64(len(mem)), 0, option.PeersBoth)
		if err != nil {
			return err
		}
		defer func() { require.NoError(t, mr.Close()) }()
		for range 4 {
			ep, err := rail.OpenEndpoint()
			if err != nil {
				return err
			}
			defer func() { require.NoError(t, ep.Close()) }()
			eps = append(eps, ep)
		}
	}
	for i := range 4 {
		if err := errors.Join(eps[i].Connect(eps[4+i].Addr()), eps[4+i].Connect(eps[i].Addr())); err != nil {
			return err
		}
	}
	return nil
}

// Each call of the set-up fails in turn, at each place. The error names call, device and limit, nothing stays open, and
// the next try succeeds.
func TestSetUpFaults(t *testing.T) {
	lib := imitation.Build(t)
	o := options(t, lib, true)
	mem := drive.Alloc(1 << 16)
	require.NoError(t, life(t, o, mem))
	for _, c := range []struct {
		call, name string
		phase      error
		times      int // calls in one life
	}{
		{"get_device_list", "ibv_get_device_list", provider.ErrUnusable, 4},
		{"open_device", "ibv_open_device", provider.ErrUnusable, 4},
		{"query_device", "ibv_query_device", provider.ErrUnusable, 4},
		{"query_port", "ibv_query_port", nil, 12}, // also for each endpoint
		{"alloc_pd", "ibv_alloc_pd", provider.ErrUnusable, 2},
		{"create_comp_channel", "ibv_create_comp_channel", provider.ErrUnusable, 2},
		{"create_cq", "ibv_create_cq", provider.ErrUnusable, 2},
		{"reg_mr", "ibv_reg_mr", nil, 4}, // also for the rail's sink
		{"create_qp", "ibv_create_qp", provider.ErrEndpoint, 8},
		{"modify_init", "ibv_modify_qp (INIT)", provider.ErrEndpoint, 8},
		{"modify_rtr", "ibv_modify_qp (RTR)", provider.ErrBadAddress, 8},
		{"modify_rts", "ibv_modify_qp (RTS)", provider.ErrBadAddress, 8},
	} {
		for n := 1; n <= c.times; n++ {
			for errno, hint := range errnos {
				what := fmt.Sprintf("%s %d %v", c.call, n, errno)
				lib.Fail(c.call, n, errno)
				err := life(t, o, mem)
				if c.call == "create_cq" && (errno == syscall.ENOMEM || errno == syscall.EINVAL) {
					require.NoError(t, err, "a shorter queue is enough")
					continue
				}
				if c.call == "create_qp" && errno == syscall.EINVAL {
					require.NoError(t, err, "the endpoint works without inline data")
					continue
				}
				if c.phase != nil {
					require.ErrorIs(t, err, c.phase, what)
				}
				require.ErrorIs(t, err, errno, what)
				require.ErrorContains(t, err, c.name, what)
				require.ErrorContains(t, err, hint, what)
				if c.call != "get_device_list" {
					require.ErrorContains(t, err, "hca0", what)
				}
				require.Empty(t, lib.Open(), what)
			}
			require.NoError(t, life(t, o, mem), "%s %d", c.call, n)
		}
		lib.Fail(c.call, c.times+1, syscall.EIO)
		require.NoError(t, life(t, o, mem), "%s is called more often than this test knows", c.call)
		lib.Fail(c.call, 0, 0)
	}
}

// errnos are errnos of drivers, each with a part of the hint in the error.
var errnos = map[syscall.Errno]string{syscall.EMFILE: "ulimit -n", syscall.ENOMEM: "memory", syscall.EAGAIN: "memory", syscall.EIO: "", syscall.EPERM: "",
	syscall.EACCES: "", syscall.EBUSY: "", syscall.ENODEV: "", syscall.EINVAL: "", syscall.ENOSPC: "", syscall.EOPNOTSUPP: "", syscall.ETIMEDOUT: ""}

// A failed close changes nothing and can be repeated.
func TestCloseFaults(t *testing.T) {
	lib := imitation.Build(t)
	a, b := pair(t, lib)
	x, _ := link(a, b)
	lib.Fail("destroy_qp", 1, syscall.EBUSY)
	err := x.Close()
	require.ErrorIs(t, err, provider.ErrEndpoint)
	require.ErrorIs(t, err, syscall.EBUSY)
	require.ErrorContains(t, err, "hca0: ibv_destroy_qp")
	require.NoError(t, x.Close())
	mr, err := a.rail.Register(drive.Addr(a.mem), 4096, 0, option.PeersBoth)
	require.NoError(t, err)
	lib.Fail("dereg_mr", 1, syscall.EIO)
	require.ErrorIs(t, mr.Close(), provider.ErrRegister)
	require.NoError(t, mr.Close())
}

// A bad device is listed last, with the reason. If all devices are bad, the error has all reasons.
func TestDiscoverReasons(t *testing.T) {
	lib := imitation.Build(t)
	o := options(t, lib, true)
	discover := func() ([]provider.Device, error) {
		return New(o).Discover(context.Background(), provider.Filter{})
	}
	lib.Set("devices", 2)
	lib.Set("ports", 2)
	devs, err := discover()
	require.NoError(t, err)
	var names []string
	for _, d := range devs {
		names = append(names, d.Name)
		require.Equal(t, uint64(100_000), d.Mbps)
	}
	require.Equal(t, []string{"hca0", "hca0:2", "hca1", "hca1:2"}, names)
	require.Equal(t, "127.0.0.1", devs[0].Addr)
	require.Equal(t, "127.0.0.0/8", devs[0].Subnet)

	lib.Set("ports", 1)
	lib.Fail("open_device", 1, syscall.EACCES)
	devs, err = discover()
	require.NoError(t, err)
	require.Len(t, devs, 2)
	require.Equal(t, "hca1", devs[0].Name)
	require.Empty(t, devs[0].Waits)
	require.Equal(t, "hca0", devs[1].Name)
	require.Contains(t, devs[1].Waits, "ibv_open_device: permission denied")
	_, err = New(o).Open(devs[1])
	require.ErrorIs(t, err, provider.ErrUnusable)

	lib.FailMany("open_device", 1, 2, syscall.EACCES)
	_, err = discover()
	require.ErrorIs(t, err, syscall.EACCES)
	require.EqualError(t, err, "device is there but unusable: hca0: ibv_open_device: permission denied (is /dev/infiniband there, and may this "+
		"user open it?); hca1: ibv_open_device: permission denied (is /dev/infiniband there, and may this user open it?)")

	lib.Set("state", 1)
	_, err = discover()
	require.ErrorIs(t, err, provider.ErrUnusable)
	require.ErrorContains(t, err, "hca0: the port is DOWN")
	lib.Set("iwarp", 1)
	_, err = discover()
	require.ErrorIs(t, err, provider.ErrUnusable)
	require.ErrorContains(t, err, "hca0: an iWARP device is not used")
	lib.Set("devices", 0)
	_, err = discover()
	require.ErrorIs(t, err, provider.ErrNoDevice)
	lib.Fail("get_device_list", 1, syscall.ENOSYS)
	_, err = discover()
	require.ErrorIs(t, err, provider.ErrNoDevice, "a kernel without RDMA")
}
