package deploy

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/skip"
	"gorail/test/testenv"
)

// TestPodsRun: the containers' commands, with the manifest's variables, move verified bytes. Interfaces and addresses are the
// loopback's, and /tmp is a folder that all may write, as an emptyDir is. RDMA's variant needs devices.
func TestPodsRun(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	for _, tt := range []struct{ file, rails string }{
		{"kubernetes.yaml", "rails=tcp/lo"},
		{"one-host.yaml", "rails=sm/memory"},
	} {
		t.Run(tt.file, func(t *testing.T) {
			list, err := load(tt.file, false)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Patient(time.Minute))
			defer cancel()
			tmp := t.TempDir()
			require.NoError(t, os.Chmod(tmp, 0o777))
			at := freeAddress(t)
			start := func(name string) (*exec.Cmd, *bytes.Buffer) {
				c := named(t, list, name)
				args := append([]string{}, c.Command[1:]...)
				args[len(args)-1] = at
				cmd := exec.CommandContext(ctx, env.Python, append(args, "--mib", "4", "--rounds", "1")...)
				cmd.WaitDelay = time.Second
				cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(testenv.Root(), "python"), "PYTHONDONTWRITEBYTECODE=1",
					"GORAIL_PLUGIN_DIR="+env.PluginDir, "TMPDIR="+tmp)
				for key, value := range environment(list, c) {
					cmd.Env = append(cmd.Env, key+"="+strings.Replace(value, "/tmp", tmp, 1))
				}
				cmd.Env = append(cmd.Env, "GORAIL_DEVICES=lo,memory", "GORAIL_CONTROL_DEVICES=")
				if tt.rails == "rails=tcp/lo" { // stands for two hosts, between which there is no shared memory
					cmd.Env = append(cmd.Env, "GORAIL_PROVIDER=tcp")
				}
				out := &bytes.Buffer{}
				cmd.Stdout, cmd.Stderr = out, out
				require.NoError(t, cmd.Start())
				return cmd, out
			}
			decode, said := start("decode")
			// restartPolicy: OnFailure
			var out *bytes.Buffer
			for ctx.Err() == nil {
				var prefill *exec.Cmd
				prefill, out = start("prefill")
				if err = prefill.Wait(); err == nil || !strings.Contains(out.String(), "ConnectionRefusedError") {
					break
				}
			}
			require.NoError(t, err, "prefill: %s", out)
			ended := decode.Wait()
			require.NoError(t, ended, "decode: %s", said)
			require.Contains(t, out.String(), "GORAIL: WRITE, READ and notification verified")
			require.Contains(t, out.String(), tt.rails)
		})
	}
}

func named(t *testing.T, list []object, name string) container {
	t.Helper()
	for _, pod := range of(list, "Pod") {
		for _, c := range pod.Spec.Containers {
			if c.Name == name {
				return c
			}
		}
	}
	t.Fatalf("no container is %s", name)
	return container{}
}

// freeAddress returns an address of the loopback with a port that was free.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}
