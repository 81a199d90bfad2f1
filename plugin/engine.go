package main

/*
#include <stdlib.h>
#include "gorail.h"
extern char **environ;
*/
import "C"

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"unsafe"

	"gorail/backend/engine"
	"gorail/backend/gpu"
	"gorail/backend/option"
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
	if err == nil && len(unknown) > 0 && a.Type == name {
		err = fmt.Errorf("%w: no option is called %s; docs/options.md has all names, and so has get_plugin_params", option.ErrValue, option.Unknowns(unknown))
	}
	if errors.Is(err, option.ErrValue) {
		return created{}, status.Errorf(status.ErrInvalidParam, "%w", err)
	}
	if err != nil {
		return created{}, err
	}
	logLevel.Set(opts.Log)
	logHost(a.Agent)
	if len(ignored) > 0 {
		slog.Info("parameters that mean nothing to GORAIL, ignored", "agent", a.Agent, "asked for as", a.Type, "names", ignored)
	}
	if len(unknown) > 0 {
		slog.Warn("unknown parameters ignored", "agent", a.Agent, "asked for as", a.Type, "names", option.Unknowns(unknown))
	}
	warnVariables()
	if old, now := option.Renamed(params, getenv); old != "" {
		if _, logged := warned.LoadOrStore("provider="+old, true); !logged {
			slog.Warn("option value has a new name; the old one works in this release, and not in the next", "option", "provider", "old", old, "new", now)
		}
	}
	e, err := engine.New(engine.Config{
		Agent:    a.Agent,
		Options:  opts,
		Provider: providers(opts, slog.Default().With("agent", a.Agent)),
		Log:      slog.Default(),
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

// name is the one under which GORAIL is no alias of another backend.
const name = "GORAIL"

// warned are variables and old names that the log has.
var warned sync.Map

// warnVariables tells of GORAIL_* variables that nothing reads, once a process.
func warnVariables() {
	for _, u := range option.UnknownVariables(environ()) {
		if _, logged := warned.LoadOrStore(u.Name, true); !logged {
			slog.Warn("unknown environment variable ignored; docs/options.md has all names", "name", u)
		}
	}
}

// environ asks C, as getenv does.
func environ() (list []string) {
	if C.environ == nil {
		return nil
	}
	for p := C.environ; *p != nil; p = (**C.char)(unsafe.Add(unsafe.Pointer(p), unsafe.Sizeof(*p))) {
		list = append(list, C.GoString(*p))
	}
	return list
}

// getenv asks C, not Go's copy from when the plugin was loaded: a host may set its environment afterwards.
func getenv(name string) (string, bool) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	v := C.getenv(c)
	return C.GoString(v), v != nil
}
