package machine

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/auto"
	"gorail/backend/provider/shm"
	"gorail/internal/subprocess"
)

// Command is the argument that makes this program the second process of reach.
const Command = "doctor-child"

const service = "Child" // net/rpc service name

// childTime bounds the second process. It needs 20 ms.
const childTime = 3 * time.Second

// openShared opens the rail sm.
func openShared(o option.Options) (provider.Rail, provider.Host, error) {
	p := auto.New(o, nil)
	found, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{provider.SharedMemory}})
	if err != nil {
		return nil, nil, err
	}
	for _, d := range found {
		if !d.Host {
			continue
		}
		r, err := p.Open(d)
		if err != nil {
			return nil, nil, err
		}
		if prover, ok := r.(provider.Host); ok {
			return r, prover, nil
		}
		return nil, nil, errors.Join(errors.New("the rail sm has no proof"), r.Close())
	}
	return nil, nil, errors.New("no device of the fabric sm")
}

// reach offers our memory to a child, which reaches it as a peer would.
func reach(o option.Options) (way string, err error) {
	r, prover, err := openShared(o)
	if err != nil {
		return "", err
	}
	defer r.Close()
	c, err := subprocess.Start(subprocess.Options{Args: []string{Command}}, service)
	if err != nil {
		return "", err
	}
	defer c.End(childTime)
	return subprocess.Call[string](c, "Reach", prover.Proof(), childTime)
}

// child has the command of the second process.
type child struct{}

// Reach finds the way to the memory of the process that offers the proof.
func (child) Reach(proof []byte, way *string) error {
	o, _, err := option.Parse(nil, nil)
	if err == nil {
		*way, err = Reach(o, proof)
	}
	return err
}

// Child is the second process.
func Child() error { return subprocess.Serve(service, child{}) }

// Reach is the way to the memory of the process that offers the proof. The error is what forbids every way.
func Reach(o option.Options, proof []byte) (way string, err error) {
	r, prover, err := openShared(o)
	if err != nil {
		return "", err
	}
	way, err = prover.Reach(proof)
	return way, errors.Join(err, r.Close())
}

// Offer opens the rail sm. Its proof counts until close is called.
func Offer(o option.Options) (proof []byte, end func() error, err error) {
	r, prover, err := openShared(o)
	if err != nil {
		return nil, nil, err
	}
	return prover.Proof(), r.Close, nil
}

// localDir makes a socket in the folder of local_dir.
func localDir(o option.Options) (path string, err error) {
	return shm.TryFolder(auto.SharedMemoryOptions(o))
}

// quiet is a log that nobody reads.
var quiet = slog.New(slog.DiscardHandler)
