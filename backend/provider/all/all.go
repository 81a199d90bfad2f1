// Package all lists all providers of an engine. The plugin and gorail doctor use the same list.
package all

import (
	"log/slog"

	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/auto"
	"gorail/backend/provider/ofi"
	"gorail/backend/provider/shm"
	"gorail/backend/provider/tcp"
	"gorail/backend/provider/verbs"
)

// New makes the providers of an engine, by their name in the option provider. A new provider is one line here
// (docs/providers.md). log takes warnings about fabrics that are not used; nil: none.
func New(o option.Options, log *slog.Logger) provider.Provider {
	return auto.Provider{
		Fabrics: map[string]provider.Provider{
			auto.Verbs: verbs.New(verbs.Options{LibraryPath: o.IbverbsPath, CUDAPath: o.CUDAPath, IB: o.IB}),
			auto.TCP: tcp.New(tcp.Options{First: o.DataPort.First, Last: o.DataPort.Last, Threads: o.Threads(), ConnectTimeout: o.ConnectTimeout,
				PeerTimeout: o.PeerTimeout, Congestion: o.TCPCongestion, Encryption: o.Encryption, Libcrypto: o.LibcryptoPath, CUDAPath: o.CUDAPath}),
			auto.SharedMemory: shm.New(SharedMemory(o)),
		},
		OFI: ofi.New(ofi.Options{LibraryPath: o.LibfabricPath, CUDAPath: o.CUDAPath, HMEM: o.HMEM, Tuning: tuning(o)}),
		Log: log,
	}
}

// SharedMemory returns the settings of the rail sm.
func SharedMemory(o option.Options) shm.Options {
	return shm.Options{Threads: o.CopyThreads, NoAssist: !o.CopyForPeers, Ptracer: o.Ptracer, CUDA: o.CUDAPath, Copies: gpu.HowOf(o.GPUCopy),
		LocalDir: o.LocalDir, AnyUser: o.LocalPeers == option.AnyWithToken}
}

// tuning returns the operator's settings for libfabric.
func tuning(o option.Options) ofi.Tuning {
	t := ofi.Tuning{TrafficClass: o.TrafficClass}
	for _, k := range o.CXIAuthKey {
		t.Keys = append(t.Keys, ofi.Key(k))
	}
	return t
}
