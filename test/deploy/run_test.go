package deploy

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/skip"
	"gorail/test/testenv"
	"gorail/test/walls"
)

// TestMain lets the test binary enter a container.
func TestMain(m *testing.M) {
	walls.MaybeEnter()
	os.Exit(m.Run())
}

// TestPodsRun: the containers' commands, with the manifest's variables, move verified bytes. Interfaces and addresses are the
// loopback's, and /tmp is a folder that all may write, as an emptyDir is. RDMA's variant needs devices. The pods of one node have
// namespaces of their own, but for the network, and the manifest's folder and user.
func TestPodsRun(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	for _, tt := range []struct {
		file, rails string
		apart       bool
	}{
		{"kubernetes.yaml", "rails=tcp/lo", false},
		{"one-host.yaml", "rails=sm/memory", false},
		{"one-node.yaml", "rails=sm/memory", true},
	} {
		t.Run(tt.file, func(t *testing.T) {
			list, err := load(tt.file, false)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Patient(time.Minute))
			defer cancel()
			tmp, shared := t.TempDir(), t.TempDir()
			require.NoError(t, os.Chmod(filepath.Dir(tmp), 0o755))
			require.NoError(t, os.Chmod(tmp, 0o777|os.ModeSticky))
			require.NoError(t, os.Chmod(shared, 0o777|os.ModeSticky)) // as the init container does
			if tt.apart {
				skip.UnlessRoot(t, "needs root to create namespaces")
				skip.OrFail(t, (&walls.Container{}).Possible())
			}
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
				if tt.apart {
					in := walls.Container{Name: name, UID: user(env.Python, podOf(list, name).Spec.SecurityContext.RunAsUser), Command: cmd.Args,
						Mounts: []walls.Mount{{Host: shared, At: meetFolder}, {Host: tmp, At: tmp}}}
					cmd.Path, cmd.SysProcAttr = "/proc/self/exe", in.Attr()
					cmd.Env = append(cmd.Env, in.Setenv(), "HOME=/")
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
				if err = prefill.Wait(); err == nil || !strings.Contains(out.String(), "Connection refused") {
					break
				}
			}
			require.NoError(t, err, "prefill: %s", out)
			ended := decode.Wait()
			require.NoError(t, ended, "decode: %s", said)
			require.Contains(t, out.String(), "GORAIL: WRITE, READ and notification verified")
			require.Contains(t, out.String(), tt.rails)
			left, err := os.ReadDir(shared)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

// user is the user as whom a container runs: root where that user may not execute the interpreter, such as one in root's home.
func user(python string, uid int) int {
	try := exec.Command(python, "-c", "")
	try.Dir, try.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	if try.Run() != nil {
		return 0
	}
	return uid
}

// podOf returns the pod of a container.
func podOf(list []object, name string) object {
	for _, pod := range of(list, "Pod") {
		if pod.Spec.Containers[0].Name == name {
			return pod
		}
	}
	return object{}
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
