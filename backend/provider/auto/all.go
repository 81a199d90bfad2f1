package auto

import (
	"log/slog"

	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/ofi"
	"gorail/backend/provider/shm"
	"gorail/backend/provider/tcp"
	"gorail/backend/provider/tcp/sock"
	"gorail/backend/provider/verbs"
)

// New makes the providers of an engine, in any order. A new provider is one line here
// (docs/providers.md). log takes warnings about fabrics that are not used; nil: none.
func New(o option.Options, log *slog.Logger) provider.Provider {
	sockets := tcp.Options{First: o.DataPort.First, Last: o.DataPort.Last, Threads: o.Threads(), ConnectTimeout: o.ConnectTimeout,
		PeerTimeout: o.PeerTimeout, Congestion: o.TCPCongestion, Compression: sock.PackingOf(o.Compression), Encryption: o.Encryption, CUDAPath: o.CUDAPath}
	return Provider{
		Fabrics: []provider.Provider{
			verbs.New(verbs.Options{LibraryPath: o.IbverbsPath, CUDAPath: o.CUDAPath, IB: o.IB}),
			tcp.New(sockets),
			tcp.NewNVLink(sockets, nvlink(o)),
			shm.New(SharedMemoryOptions(o)),
		},
		OFI: ofi.New(ofi.Options{LibraryPath: o.LibfabricPath, CUDAPath: o.CUDAPath, HMEM: o.HMEM, Tuning: tuning(o)}),
		Log: log,
	}
}

// SharedMemoryOptions returns the settings of the rail sm.
func SharedMemoryOptions(o option.Options) shm.Options {
	return shm.Options{Threads: o.CopyThreads, NoAssist: !o.CopyForPeers, Ptracer: o.Ptracer, CUDA: o.CUDAPath, Copies: gpu.HowOf(o.GPUCopy),
		NoMapping: !o.GPUMapping, LocalDir: o.LocalDir, AnyUser: o.LocalPeers == option.AnyWithToken}
}

// nvlink returns the settings of NVLink between hosts.
func nvlink(o option.Options) tcp.NVLinkOptions {
	n := tcp.NVLinkOptions{CUDAPath: o.CUDAPath, Channels: o.IMEXChannels, Control: o.ControlDevices, Copies: gpu.HowOf(o.GPUCopy)}
	switch {
	case !o.GPUMapping:
		n.Off = "option gpu_mapping=off forbids it"
	case o.Encryption && !o.TrustedRDMA:
		n.Off = "option encryption=on forbids it: bytes on NVLink are in clear; rdma=trusted allows it"
	}
	return n
}

// tuning returns the operator's settings for libfabric.
func tuning(o option.Options) ofi.Tuning {
	t := ofi.Tuning{TrafficClass: o.TrafficClass}
	for _, k := range o.CXIAuthKey {
		t.Keys = append(t.Keys, ofi.Key(k))
	}
	return t
}
