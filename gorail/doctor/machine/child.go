package machine

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/auto"
	"gorail/backend/provider/shm"
)

// Command is the argument that makes this program the second process of reach.
const Command = "doctor-child"

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
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), childTime)
	defer cancel()
	c := exec.CommandContext(ctx, self, Command)
	c.Stdin = strings.NewReader(hex.EncodeToString(prover.Proof()))
	var failed strings.Builder
	c.Stderr = &failed
	out, err := c.Output()
	if err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("the second process did not end within %v", childTime)
		}
		if said := strings.TrimPrefix(strings.TrimSpace(failed.String()), "gorail: "); said != "" {
			return "", errors.New(said)
		}
		return "", fmt.Errorf("the second process: %w", err)
	}
	return string(out), nil
}

// Child is the second process. It writes the way to the first one's memory. Its error is what forbids every way.
func Child(in io.Reader, out io.Writer) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	proof, err := hex.DecodeString(string(text))
	if err != nil {
		return fmt.Errorf("only gorail doctor may start this command: %w", err)
	}
	o, _, err := option.Parse(nil, nil)
	if err != nil {
		return err
	}
	way, err := Reach(o, proof)
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, way)
	return err
}

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
