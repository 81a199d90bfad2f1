package main

/*
#include <stdlib.h>
#include "gorail.h"
*/
import "C"

import (
	"errors"
	"log/slog"
	"unsafe"

	"gorail/backend/engine"
	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/provider/auto"
	"gorail/backend/provider/local"
	"gorail/backend/provider/ofi"
	"gorail/backend/provider/verbs"
	"gorail/backend/status"
)

// Desc is a descriptor as it lies in the agent's list.
type Desc = engine.Desc

// The engine reads region ids where the shim's metadata objects have them.
const _ = -(uint(engine.MDRegion) ^ uint(C.GR_MD_REGION))

// createEngine makes the engine of an agent from what it was given and the GORAIL_* environment.
func createEngine(a createArgs) (created, error) {
	params, ignored := option.AliasOf(a.Type).Translate(a.Params)
	opts, unknown, err := option.Parse(params, getenv)
	if errors.Is(err, option.ErrValue) {
		return created{}, status.Errorf(status.ErrInvalidParam, "%w", err)
	}
	if err != nil {
		return created{}, err
	}
	logLevel.Set(opts.Log)
	if len(ignored) > 0 {
		slog.Info("parameters that mean nothing to GORAIL, ignored", "agent", a.Agent, "asked for as", a.Type, "names", ignored)
	}
	if len(unknown) > 0 {
		slog.Debug("options that are not ours, ignored", "agent", a.Agent, "names", unknown)
	}
	e, err := engine.New(engine.Config{
		Agent:   a.Agent,
		Options: opts,
		Provider: auto.Provider{Verbs: verbs.New(verbs.Options{LibraryPath: opts.IbverbsPath, CMLibraryPath: opts.RdmacmPath, CUDAPath: opts.CUDAPath, Ports: opts.DataPort, IB: opts.IB}),
			OFI: ofi.New(ofi.Options{LibraryPath: opts.LibfabricPath, CUDAPath: opts.CUDAPath, HMEM: opts.HMEM, Tuning: tuning(opts),
				Ports: ofi.Ports{First: opts.DataPort.First, Last: opts.DataPort.Last, Sources: opts.DataSources}}),
			Local: local.New(local.Options{Threads: opts.CopyThreads, Aloof: !opts.CopyForPeers, Ptracer: opts.Ptracer, CUDA: opts.CUDAPath, Blocks: opts.GPUBlocks})},
		Log: slog.Default(),
	})
	if err != nil {
		return created{}, err
	}
	absent := gpu.Present(opts.CUDAPath)
	if absent != nil {
		slog.Debug("no memory of GPUs", "agent", a.Agent, "cuda_path", opts.CUDAPath, "reason", absent)
	}
	return created{engine: e, conn: e.Conn(), core: e.Core(), vram: absent == nil}, nil
}

// tuning is what the operator asks of libfabric.
func tuning(o option.Options) ofi.Tuning {
	t := ofi.Tuning{TrafficClass: o.TrafficClass, TxDepth: o.TxDepth, RxDepth: o.RxDepth, CQDepth: o.CQDepth,
		ThreadDomain: o.Threading == "domain"}
	for _, k := range o.CXIAuthKey {
		t.Keys = append(t.Keys, ofi.Key(k))
	}
	return t
}

// getenv asks C, not Go's copy from when the plugin was loaded: a host may set its environment afterwards.
func getenv(name string) (string, bool) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	v := C.getenv(c)
	return C.GoString(v), v != nil
}
