package plugin

/*
#include <stdlib.h>
#include "gorail.h"
*/
import "C"

import (
	"strings"
	"unsafe"

	"gorail/backend/engine"
	"gorail/backend/gpu"
	"gorail/backend/option"
)

// engines holds all engines of the process.
var engines handles

// onEngine calls f with the engine of a handle.
func onEngine(call string, handle C.uint64_t, f func(*engine.Engine) error) C.int32_t {
	return C.int32_t(answer(call, func() error {
		e, err := engines.get(uint64(handle))
		if err != nil {
			return err
		}
		return f(e)
	}))
}

//export gorail_create
func gorail_create(in *C.gr_create_args, out *C.gr_created) C.int32_t {
	rc := answer("createBackend", func() error {
		args := createArgs{
			Agent:  str(&in.agent),
			Type:   str(&in._type),
			Lack:   str(&in.lack),
			Params: map[string]string{},
		}
		for i := range unsafe.Slice(in.params, in.nparams) {
			p := &unsafe.Slice(in.params, in.nparams)[i]
			args.Params[str(&p.key)] = str(&p.value)
		}
		c, err := createEngine(args)
		if err != nil {
			return err
		}
		out.engine = C.uint64_t(engines.add(c.engine))
		out.core = c.core
		out.vram = C.int32_t(flag(c.vram))
		out.conn = owned(c.conn)
		return nil
	})
	if rc != 0 {
		logs.Flush(lastWords)
	}
	return C.int32_t(rc)
}

//export gorail_destroy
func gorail_destroy(handle C.uint64_t) C.int32_t {
	defer logs.Flush(flushTime) // the process may end now
	return C.int32_t(answer("destroy", func() error {
		e, err := engines.remove(uint64(handle))
		if err != nil {
			return err
		}
		return e.Close()
	}))
}

//export gorail_register
func gorail_register(handle C.uint64_t, in *C.gr_region_args, out *C.gr_registered) C.int32_t {
	return onEngine("registerMem", handle, func(e *engine.Engine) error {
		room := unsafe.Slice((*byte)(&out.blob[0]), len(out.blob))
		id, blob, err := e.RegisterBlob(uint64(in.addr), uint64(in.len), uint64(in.dev), int32(in.mem), bytes(&in.blob), room[:0])
		if err != nil {
			return err
		}
		out.region, out.len = C.uint64_t(id), C.uint32_t(len(blob))
		return nil
	})
}

//export gorail_deregister
func gorail_deregister(handle, region C.uint64_t) C.int32_t {
	return onEngine("deregisterMem", handle, func(e *engine.Engine) error { return e.Deregister(uint64(region)) })
}

//export gorail_load_conn
func gorail_load_conn(handle C.uint64_t, peer, blob *C.gr_bytes) C.int32_t {
	return onEngine("loadRemoteConnInfo", handle, func(e *engine.Engine) error { return e.LoadConn(str(peer), bytes(blob)) })
}

//export gorail_load_remote
func gorail_load_remote(handle C.uint64_t, peer *C.gr_bytes, in *C.gr_region_args, region *C.uint64_t) C.int32_t {
	return onEngine("loadRemoteMD", handle, func(e *engine.Engine) error {
		id, err := e.LoadRemote(str(peer), uint64(in.addr), uint64(in.len), uint64(in.dev), int32(in.mem), bytes(&in.blob))
		*region = C.uint64_t(id)
		return err
	})
}

//export gorail_unload_remote
func gorail_unload_remote(handle, region C.uint64_t) C.int32_t {
	return onEngine("unloadMD", handle, func(e *engine.Engine) error { return e.UnloadRemote(uint64(region)) })
}

//export gorail_connect
func gorail_connect(handle C.uint64_t, peer *C.gr_bytes) C.int32_t {
	return onEngine("connect", handle, func(e *engine.Engine) error { return e.Connect(str(peer)) })
}

//export gorail_disconnect
func gorail_disconnect(handle C.uint64_t, peer *C.gr_bytes) C.int32_t {
	return onEngine("disconnect", handle, func(e *engine.Engine) error { return e.Disconnect(str(peer)) })
}

//export gorail_prep
func gorail_prep(handle C.uint64_t, in *C.gr_prep_args, out *C.gr_prepped) C.int32_t {
	return onEngine("prepXfer", handle, func(e *engine.Engine) error {
		xfer, slot, err := e.Prep(int(in.op), descs(in.local, in.nlocal), descs(in.remote, in.nremote), str(&in.peer))
		if err != nil {
			return err
		}
		out.xfer, out.slot = C.uint64_t(xfer), slot
		return nil
	})
}

//export gorail_post
func gorail_post(handle, xfer C.uint64_t, notif *C.gr_notif_args) C.int32_t {
	return C.int32_t(answerStatus("postXfer", func() (int32, error) {
		e, err := engines.get(uint64(handle))
		if err != nil {
			return 0, err
		}
		return e.Post(uint64(xfer), notif.has != 0, bytes(&notif.msg))
	}))
}

//export gorail_release
func gorail_release(handle, xfer C.uint64_t) C.int32_t {
	return onEngine("releaseReqH", handle, func(e *engine.Engine) error { return e.Release(uint64(xfer)) })
}

//export gorail_estimate
func gorail_estimate(handle, xfer C.uint64_t, out *C.gr_estimate) C.int32_t {
	return onEngine("estimateXferCost", handle, func(e *engine.Engine) error {
		d, margin, err := e.Estimate(uint64(xfer))
		out.duration_us, out.margin_us = C.int64_t(d.Microseconds()), C.int64_t(margin.Microseconds())
		return err
	})
}

//export gorail_notify
func gorail_notify(handle C.uint64_t, peer, msg *C.gr_bytes) C.int32_t {
	return onEngine("genNotif", handle, func(e *engine.Engine) error { return e.Notify(str(peer), bytes(msg)) })
}

//export gorail_query_mem
func gorail_query_mem(handle C.uint64_t, in *C.gr_region_args, known *C.int32_t) C.int32_t {
	return onEngine("queryMem", handle, func(e *engine.Engine) error {
		yes, err := e.Known(uint64(in.addr), uint64(in.len), uint64(in.dev), int32(in.mem))
		if yes {
			*known = 1
		}
		return err
	})
}

//export gorail_options
func gorail_options(file *C.gr_bytes, table *C.gr_owned) C.int32_t {
	return C.int32_t(answer("getPluginParams", func() error {
		var b strings.Builder
		for _, o := range option.AliasOfFile(str(file)).Defaults() {
			b.WriteString(o.Name + "\x00" + o.Value + "\x00")
		}
		*table = owned([]byte(b.String()))
		return nil
	}))
}

//export gorail_vram
func gorail_vram(yes *C.int32_t) C.int32_t {
	return C.int32_t(answer("getPluginMems", func() error {
		opts, _, err := option.Parse(nil, getenv)
		if err != nil {
			opts.CUDAPath = gpu.DefaultPath // createEngine reports the invalid options
		}
		*yes = C.int32_t(flag(gpu.Present(opts.CUDAPath) == nil))
		return nil
	}))
}

//export gorail_version
func gorail_version(out *C.gr_owned) C.int32_t {
	return C.int32_t(answer("version", func() error {
		*out = owned([]byte(version))
		return nil
	}))
}

//export gorail_refused
func gorail_refused(call *C.gr_bytes, why C.int32_t) C.int32_t {
	return C.int32_t(answerOnce(str(call), refused(int(why))))
}

//export gorail_host
func gorail_host(in *C.gr_host_args) C.int32_t {
	return C.int32_t(answer("nixl_plugin_init", func() error {
		recordHost(nixlHost{str(&in.nixl), str(&in.releases), str(&in.compared), str(&in.difference), str(&in.added), in.served != 0})
		return nil
	}))
}

func flag(yes bool) int32 {
	if yes {
		return 1
	}
	return 0
}
