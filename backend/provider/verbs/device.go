package verbs

import (
	"cmp"
	"errors"
	"os"
	"syscall"

	"gorail/backend/option"
	"gorail/backend/provider/internal/clib"
	"gorail/backend/provider/verbs/ibverbs"
)

// Entries of a completion queue. There is room for some thirty endpoints, 2 MiB: many drivers can't resize a queue (hns, mana, qedr,
// erdma; irdma at times).
const (
	cqMost  = 32768
	cqLeast = 1024
)

// device is what libibverbs has open for a rail. It does not change until it is closed.
type device struct {
	lib  *ibverbs.Library
	ctx  *ibverbs.Context
	c    *ibverbs.Rail // with the protection domain, the completion channel and the queue
	attr ibverbs.DeviceAttr

	ethernet bool // RoCE or iWARP, else InfiniBand
	ibGID    int  // of InfiniBand: the index of the source of routes; -1: within the subnet
	dmabuf   bool // memory can be registered by a dmabuf
}

// open opens a port. An error leaves nothing open.
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
		d.ibGID = 0 // virtual functions
	}
	if err = c.AllocPD(d.ctx); err != nil {
		return err
	}
	d.dmabuf = libraryKnowsDMABuf(l, c)
	if o.ODP && !canODP(d.ctx) {
		return &clib.CallError{Call: "on-demand paging of RC WRITE, READ and SEND (option ib_odp)", Errno: syscall.EOPNOTSUPP}
	}
	access := ibverbs.AccessLocalWrite
	if e.port.iwarp { // the sink of a READ is written to as by a peer
		access |= ibverbs.AccessRemoteWrite
	}
	if err = c.RegisterSink(access); err != nil {
		return err
	}
	if err = c.CreateChannel(d.ctx); err != nil {
		return err
	}
	completions, events := c.FDs(d.ctx)
	if err = errors.Join(syscall.SetNonblock(completions, true), syscall.SetNonblock(events, true)); err != nil {
		return clib.Failed("fcntl", err)
	}
	if err = d.createCQ(); err != nil {
		return err
	}
	c.SetFacts(d.facts(completions, port.MaxMsg, e.port.iwarp))
	return nil
}

// facts are what the core is told of the device.
func (d *device) facts(waitFD int, maxMsg uint32, iwarp bool) ibverbs.Facts {
	f := ibverbs.Facts{
		WaitFD: waitFD, MaxMsg: maxMsg, MaxCQE: d.attr.MaxCQE, IWarp: iwarp,
		// One request is kept, see room() in post.c, and one is the READ that proves the others.
		Segments: atMost(d.attr.MaxQPWR-2, ibverbs.MaxSegments),
		TxDepth:  atMost(d.attr.MaxQPWR, ibverbs.SendDepth) / 2,
		RxDepth:  atMost(d.attr.MaxQPWR, ibverbs.RecvDepth),
	}
	if iwarp {
		f.RxDepth-- // the first is the connection's own
	}
	return f
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

// createCQ takes a shorter queue where the device has no room for that.
func (d *device) createCQ() error {
	for n := int(atMost(d.attr.MaxCQE, cqMost)); ; n /= 2 {
		err := d.c.CreateCQ(d.ctx, n)
		if err == nil || n <= cqLeast || !errors.Is(err, syscall.ENOMEM) && !errors.Is(err, syscall.EINVAL) {
			return err
		}
	}
}

// close closes what is open, and gives the first error.
func (d *device) close() error {
	err := d.c.Close()
	if d.ctx != nil {
		err = cmp.Or(err, d.lib.CloseDevice(d.ctx))
	}
	return err
}

// libraryKnowsDMABuf tries a descriptor that is none: whoever knows dmabufs says EBADF, kernels (before 5.12) and drivers that don't say other things.
func libraryKnowsDMABuf(l *ibverbs.Library, c *ibverbs.Rail) bool {
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

// canODP says whether what connections of ours do with memory works with pages that may not be there.
func canODP(ctx *ibverbs.Context) bool {
	general, connections, ok := ibverbs.QueryODP(ctx)
	return ok && general&ibverbs.ODPSupport != 0 && connections&ibverbs.ODPConnections == ibverbs.ODPConnections
}
