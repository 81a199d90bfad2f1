package verbs

import (
	"cmp"
	"errors"
	"math"
	"os"
	"syscall"

	"gorail/backend/option"
	"gorail/backend/provider/internal/clib"
	"gorail/backend/provider/verbs/ibverbs"
)

// device holds the libibverbs objects of a rail. The fields do not change while the device is open.
type device struct {
	lib  *ibverbs.Library
	ctx  *ibverbs.Context
	c    *ibverbs.Rail // owns the protection domain, the completion channel and the completion queues
	attr ibverbs.DeviceAttr

	ethernet bool // RoCE, else InfiniBand
	ibGID    int  // InfiniBand only: GID index of the route's source; -1: no GRH, within the subnet
	dmabuf   bool // the library and the driver can register a dmabuf
}

// open opens a port. After an error nothing stays open.
func (d *device) open(e *entry, o option.IB) (err error) {
	d.lib = e.lib
	if d.c, err = ibverbs.NewRail(d.lib); err != nil {
		return err
	}
	if err = d.objects(e, o); err != nil {
		_ = d.close()
	}
	return err
}

// objects implements ibv_open_device, ibv_alloc_pd, ibv_reg_mr, ibv_create_comp_channel and ibv_create_cq.
func (d *device) objects(e *entry, o option.IB) (err error) {
	l, c := d.lib, d.c
	if d.ctx, err = openNamed(l, e.port.device); err != nil {
		return err
	}
	if d.attr, err = l.QueryDevice(d.ctx); err != nil {
		return err
	}
	port, err := l.QueryPort(d.ctx, e.port.number)
	if err != nil {
		return err
	}
	d.ethernet, d.ibGID = port.Ethernet, o.GIDIndex
	if !port.Ethernet && port.NeedsGRH && d.ibGID < 0 {
		d.ibGID = 0 // virtual functions need a GRH
	}
	if err = c.AllocPD(d.ctx); err != nil {
		return err
	}
	d.dmabuf = supportsDMABuf(l, c)
	if err = c.RegisterSink(); err != nil {
		return err
	}
	if err = c.CreateChannel(d.ctx); err != nil {
		return err
	}
	completions, events := c.FDs(d.ctx)
	if err = errors.Join(syscall.SetNonblock(completions, true), syscall.SetNonblock(events, true)); err != nil {
		return clib.Failed("fcntl", err)
	}
	c.SetFacts(d.facts(completions, port.MaxMsg))
	return c.CreateCQ()
}

// facts returns the device's properties for the core.
func (d *device) facts(waitFD int, maxMsg uint32) ibverbs.Facts {
	return ibverbs.Facts{
		WaitFD: waitFD, MaxMsg: maxMsg, MaxCQ: uint32(max(d.attr.MaxCQ, 0)), MaxCQE: atMost(d.attr.MaxCQE, math.MaxInt32),
		// Two requests are reserved: one by room() in post.c, and one for the READ that proves the WRITEs.
		Segments: atMost(d.attr.MaxQPWR-2, ibverbs.MaxSegments),
		TxDepth:  atMost(d.attr.MaxQPWR, ibverbs.SendDepth) / 2,
		RxDepth:  atMost(d.attr.MaxQPWR, ibverbs.RecvDepth),
	}
}

// openNamed implements ibv_open_device.
func openNamed(l *ibverbs.Library, name string) (*ibverbs.Context, error) {
	list, free, err := l.DeviceList()
	if err != nil {
		return nil, err
	}
	defer free()
	for _, d := range list {
		if own, _ := ibverbs.DeviceName(d); own == name {
			return l.OpenDevice(d)
		}
	}
	return nil, clib.Failed("ibv_open_device", syscall.ENODEV)
}

// close closes all open objects and returns the first error.
func (d *device) close() error {
	err := d.c.Close()
	if d.ctx != nil {
		err = cmp.Or(err, d.lib.CloseDevice(d.ctx))
	}
	return err
}

// supportsDMABuf tests dmabuf support with an invalid descriptor. EBADF means that the driver supports dmabufs.
// Older kernels (before 5.12) and drivers without support return other errors.
func supportsDMABuf(l *ibverbs.Library, c *ibverbs.Rail) bool {
	if !l.HasDMABuf() {
		return false
	}
	mr, err := c.RegisterDMABuf(-1, 0, uint64(os.Getpagesize()), 0, ibverbs.AccessLocalWrite)
	if err == nil {
		_ = l.DeregMR(mr)
		return false
	}
	return clib.As(err).Errno == syscall.EBADF
}

// atMost returns want, or the device's value if it is known and smaller.
func atMost(device int, want uint32) uint32 {
	if device > 0 && uint64(device) < uint64(want) {
		return uint32(device)
	}
	return want
}
