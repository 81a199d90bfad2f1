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
	"gorail/backend/provider/all"
	"gorail/backend/provider/auto"
)

// Command is the argument that makes this program the second process of ReadMe.
const Command = "doctor-child"

// childTime bounds the second process. It needs 20 ms.
const childTime = 3 * time.Second

// openShared opens the rail sm.
func openShared(o option.Options) (provider.Rail, provider.Prover, error) {
	p := all.New(o, nil)
	found, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{auto.SharedMemory}})
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
		if prover, ok := r.(provider.Prover); ok {
			return r, prover, nil
		}
		return nil, nil, errors.Join(errors.New("the rail sm has no proof"), r.Close())
	}
	return nil, nil, errors.New("no device of the fabric sm")
}

// readMe offers our memory to a child, which reads it as a peer would.
func readMe(o option.Options) error {
	r, prover, err := openShared(o)
	if err != nil {
		return err
	}
	defer r.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), childTime)
	defer cancel()
	c := exec.CommandContext(ctx, self, Command)
	c.Stdin = strings.NewReader(hex.EncodeToString(prover.Proof()))
	var failed strings.Builder
	c.Stderr = &failed
	if err := c.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("the second process did not end within %v", childTime)
		}
		if said := strings.TrimPrefix(strings.TrimSpace(failed.String()), "gorail: "); said != "" {
			return errors.New(said)
		}
		return fmt.Errorf("the second process: %w", err)
	}
	return nil
}

// Child is the second process. Its error is what forbids the access.
func Child(in io.Reader) error {
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
	r, prover, err := openShared(o)
	if err != nil {
		return err
	}
	way, err := prover.Reach(proof)
	if err == nil && way != "" {
		err = errors.New(way)
	}
	return errors.Join(err, r.Close())
}

// quiet is a log that nobody reads.
var quiet = slog.New(slog.DiscardHandler)
