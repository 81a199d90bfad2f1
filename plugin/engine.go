package plugin

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
	"os"
	"strings"
	"sync"
	"unsafe"

	"gorail/backend/engine"
	"gorail/backend/errcode"
	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/provider/auto"
)

// Desc is a descriptor with the layout of the agent's list.
type Desc = engine.Desc

// The engine reads region ids at the shim's offset in metadata objects. This fails to compile if the offsets differ.
const _ = -(uint(engine.MDRegion) ^ uint(C.GR_MD_REGION))

// A registration returns the blob in the caller's memory. This fails to compile if that is too small.
const _ = uint(C.GR_REGION_BLOB - engine.RegionBlobSize)

// createEngine creates the engine of an agent from the agent's parameters and the GORAIL_* environment.
func createEngine(a createArgs) (created, error) {
	asked, err := option.AliasOf(a.Type).Translate(a.Params, option.Machine{Environ: environ(), Sys: os.DirFS("/sys")})
	var opts option.Options
	var unknown []string
	if err == nil {
		opts, unknown, err = option.Parse(asked.Params, getenv)
	}
	if err == nil && len(unknown) > 0 && a.Type == name {
		err = fmt.Errorf("%w: no option is called %s; docs/options.md has all names, and so has get_plugin_params", option.ErrValue, option.Unknowns(unknown))
	}
	if errors.Is(err, option.ErrValue) {
		return created{}, errcode.BadOption.Errorf("%w", err)
	}
	if err != nil {
		return created{}, err
	}
	if err := setLog(&opts.Logging, a.Agent); err != nil {
		return created{}, errcode.LogFileUnusable.Errorf("option log_file=%s: %w", opts.LogFile, err)
	}
	logHost(a.Agent)
	if a.Lack != "" {
		return created{}, errcode.NoRoom.Errorf("no engine can start: %s", a.Lack)
	}
	logAsked(&a, &asked)
	if len(unknown) > 0 {
		slog.Warn("unknown parameters ignored", "agent", a.Agent, "asked for as", a.Type, "names", option.Unknowns(unknown))
	}
	warnVariables()
	if old, now := option.Renamed(asked.Params, getenv); old != "" {
		if _, logged := warned.LoadOrStore("provider="+old, true); !logged {
			slog.Warn("option value was renamed: the old name ends with the next release", "option", "provider", "old", old, "new", now)
		}
	}
	e, err := engine.New(engine.Config{
		Agent:    a.Agent,
		Version:  version,
		Options:  opts,
		Provider: auto.New(opts, slog.Default().With("agent", a.Agent)),
		Log:      slog.Default(),
	})
	if err != nil {
		return created{}, said(err, asked.Taken)
	}
	absent := gpu.Present(opts.CUDAPath)
	if absent != nil {
		slog.Debug("GPU memory is not supported by this engine", "agent", a.Agent, "cuda_path", opts.CUDAPath, "reason", absent)
	}
	return created{engine: e, conn: e.Conn(), core: e.Core(), vram: absent == nil}, nil
}

// logAsked logs what became of another backend's parameters, and of UCX's variables.
func logAsked(a *createArgs, asked *option.Translated) {
	if len(asked.Taken)+len(asked.Ignored) > 0 {
		slog.Info("settings of another backend", "agent", a.Agent, "asked for as", a.Type, "taken", strings.Join(asked.Taken, "; "), "ignored", strings.Join(asked.Ignored, "; "))
	}
	if len(asked.Wrong) > 0 {
		slog.Warn("settings of another backend that mean nothing ignored", "agent", a.Agent, "asked for as", a.Type, "settings", strings.Join(asked.Wrong, "; "))
	}
}

// said adds to an error the settings of another backend that set options.
func said(err error, taken []string) error {
	if len(taken) == 0 {
		return err
	}
	return fmt.Errorf("%w (options set by settings of another backend: %s)", err, strings.Join(taken, "; "))
}

// name is GORAIL's own plugin name; every other name is an alias.
const name = "GORAIL"

// warned holds the variables and old names that have been logged.
var warned sync.Map

// warnVariables logs unknown GORAIL_* variables, once per process.
func warnVariables() {
	for _, u := range option.UnknownVariables(environ()) {
		if _, logged := warned.LoadOrStore(u.Name, true); !logged {
			slog.Warn("unknown environment variable ignored; docs/options.md has all names", "name", u)
		}
	}
}

// environ reads C's environment, as getenv does.
func environ() (list []string) {
	if C.environ == nil {
		return nil
	}
	for p := C.environ; *p != nil; p = (**C.char)(unsafe.Add(unsafe.Pointer(p), unsafe.Sizeof(*p))) {
		list = append(list, C.GoString(*p))
	}
	return list
}

// getenv reads C's environment. Go's copy dates from the load of the plugin, and a host may set variables afterwards.
func getenv(name string) (string, bool) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	v := C.getenv(c)
	return C.GoString(v), v != nil
}
