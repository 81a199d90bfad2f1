package verbs

import (
	"errors"
	"syscall"
	"unsafe"

	"gorail/backend/option"
	"gorail/backend/provider/internal/clib"
)

// Entries of a completion queue. There is room for some thirty endpoints, 2 MiB: many drivers can't resize a queue (hns, mana, qedr,
// erdma; irdma at times).
const (
	cqMost  = 32768
	cqLeast = 1024
)

// device is what libibverbs has open for a rail. It does not change until it is closed.
type device struct {
	lib  *library
	ctx  *ibvContext
	c    *coreRail // with the protection domain, the completion channel and the queue
	attr deviceAttr

	ethernet bool // RoCE or iWARP, else InfiniBand
	ibGID    int  // of InfiniBand: the index of the source of routes; -1: within the subnet
	dmabuf   bool // memory can be registered by a dmabuf
}

// iwarp says that rdma_cm connects.
func (d *device) iwarp() bool { return d.c.iwarp != 0 }

// open opens a port. An error leaves nothing open.
func (d *device) open(e *entry, o option.IB) (err error) {
	d.lib = e.lib
	if d.c, err = newCoreRail(d.lib); err != nil {
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
	if d.ctx, err = l.openNamed(e.port.device); err != nil {
		return err
	}
	if d.attr, err = l.queryDevice(d.ctx); err != nil {
		return err
	}
	port, err := l.queryPort(d.ctx, e.port.number)
	if err != nil {
		return err
	}
	d.ethernet, d.ibGID = port.ethernet, o.GIDIndex
	if !port.ethernet && port.needsGRH && d.ibGID < 0 {
		d.ibGID = 0 // virtual functions
	}
	if c.pd, err = l.allocPD(d.ctx); err != nil {
		return err
	}
	d.dmabuf = l.canDMABuf(c.pd)
	if o.ODP && !canODP(d.ctx) {
		return &clib.CallError{Call: "on-demand paging of RC WRITE, READ and SEND (option ib_odp)", Errno: syscall.EOPNOTSUPP}
	}
	access := accessLocalWrite
	if e.port.iwarp { // the sink of a READ is written to as by a peer
		access |= accessRemoteWrite
	}
	if c.sink_mr, err = l.regMR(c.pd, unsafe.Pointer(&c.sink), len(c.sink), access); err != nil {
		return err
	}
	if c.channel, err = l.createChannel(d.ctx); err != nil {
		return err
	}
	completions, events := fds(c.channel, d.ctx)
	if err = errors.Join(syscall.SetNonblock(completions, true), syscall.SetNonblock(events, true)); err != nil {
		return clib.Failed("fcntl", err)
	}
	if c.cq, err = d.createCQ(); err != nil {
		return err
	}
	limits{waitFD: completions, maxCQE: d.attr.maxCQE, maxQPWR: d.attr.maxQPWR, maxMsg: port.maxMsg, iwarp: e.port.iwarp}.set(c)
	return nil
}

// openNamed implements ibv_open_device.
func (l *library) openNamed(name string) (*ibvContext, error) {
	list, free, err := l.deviceList()
	if err != nil {
		return nil, err
	}
	defer free()
	for _, d := range list {
		if own, _ := deviceName(d); own == name {
			return l.openDevice(d)
		}
	}
	return nil, clib.Failed("ibv_open_device", syscall.ENODEV)
}

// createCQ takes a shorter queue where the device has no room for that.
func (d *device) createCQ() (*ibvCQ, error) {
	for n := int(atMost(d.attr.maxCQE, cqMost)); ; n /= 2 {
		cq, err := d.lib.createCQ(d.ctx, d.c.channel, n)
		if err == nil || n <= cqLeast || !errors.Is(err, syscall.ENOMEM) && !errors.Is(err, syscall.EINVAL) {
			return cq, err
		}
	}
}

// close closes what is open, and gives the first error.
func (d *device) close() error {
	l, c := d.lib, d.c
	var first error
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	if c.cq != nil {
		note(l.destroyCQ(c.cq))
	}
	if c.channel != nil {
		note(l.destroyChannel(c.channel))
	}
	if c.sink_mr != nil {
		note(l.deregMR(c.sink_mr))
	}
	if c.pd != nil {
		note(l.deallocPD(c.pd))
	}
	if d.ctx != nil {
		note(l.closeDevice(d.ctx))
	}
	freeCoreRail(c)
	return first
}
