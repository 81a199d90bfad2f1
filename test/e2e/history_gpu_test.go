package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/internal/subprocess"
	"gorail/test/cuda"
	"gorail/test/held"
	"gorail/test/history"
	"gorail/test/history/mover"
	"gorail/test/history/play"
	"gorail/test/testenv"
)

// notYetSpared: over tcp a peer's transfer of GPU memory that its owner has unmapped makes the owner's GPU copy from there. Then CUDA
// fails for good in that process. So nobody posts such transfers. Who mends that removes it here.
var notYetSpared = map[string]bool{"tcp": true}

// TestHistoryGPU: agents with memory of GPUs and of the host read and write each other's. They unmap and free what is registered, map
// other memory there, deregister and register anew, tell nobody, and remove and load living peers; some are stopped, cut off, killed and
// started again. Package history says what must hold. It takes GORAIL_TEST_HISTORY, GORAIL_TEST_HISTORY_SEED and GORAIL_TEST_HISTORY_KEEP
// as TestHistory does. GORAIL_TEST_CUDA=libcuda.so.1 has it on all GPUs of this machine.
func TestHistoryGPU(t *testing.T) {
	t.Parallel()
	env := ours(t)
	first, length := asked(t, time.Duration(rounds(4, 20))*time.Second)
	const round = 20 * time.Second
	cases := []struct {
		name, provider   string
		changes, reloads int
		long             bool // takes part in long runs alone
	}{{"memory", "sm", 4, 4, false}, {"tcp", "tcp", 4, 4, false}, {"reloads", "sm", 1, 60, true}, {"reloads over tcp", "tcp", 1, 60, true}}
	real := os.Getenv("GORAIL_TEST_CUDA") != ""
	if real { // nobody else uses the GPUs, so that their free memory says what peers hold
		length /= time.Duration(len(cases))
	}
	for _, c := range cases {
		if c.long && length < round {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if !real {
				t.Parallel()
			}
			end := time.Now().Add(length)
			for seed := first; ; seed++ {
				ok := t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
					m := newMoving(t)
					m.changes, m.reloads = c.changes, c.reloads
					l := newKillLoop(t, env, c.provider, seed)
					l.Others = m
					m.play(l, min(round, length))
				})
				if !ok || time.Until(end) < round {
					return
				}
			}
		})
	}
}

// moving is what TestHistoryGPU has beside a killLoop. Implements play.Others.
type moving struct {
	cuda string
	app  *cuda.App // real GPUs, whose free memory tells what peers hold; nil: the imitation
	gpus int
	size uint64 // of a piece
	dead []dead

	changes, reloads int // see mover.Begin
}

func newMoving(t *testing.T) *moving {
	m := &moving{cuda: os.Getenv("GORAIL_TEST_CUDA"), gpus: 2, size: 2 * cuda.Granule}
	if m.cuda == "" {
		m.cuda = cuda.Build(t).Path
		return m
	}
	found, _ := filepath.Glob("/dev/nvidia[0-9]*")
	m.app, m.gpus, m.size = cuda.NewApp(t, m.cuda), max(1, len(found)), 32*cuda.Granule
	return m
}

// NewMemory implements play.Others.
func (*moving) NewMemory() (*os.File, error) { return mover.NewBoard() }

// Start implements play.Others.
func (*moving) Start(env testenv.Env, attr *syscall.SysProcAttr, setenv ...string) (*subprocess.Client, error) {
	return mover.Start(env, attr, setenv...)
}

// Begin implements play.Others.
func (m *moving) Begin(l *play.Round, r *play.Role, file string) (any, error) {
	return subprocess.Call[mover.Load](r.Client, "Begin", mover.Begin{Seed: l.Seed, Engine: r.Engine, Names: l.Cast, Backend: l.Env.Backend,
		Params: map[string]string{"provider": l.Provider, "cuda_path": m.cuda, "xfer_timeout": "10s", "cancel_timeout": "5s"}, Wheel: l.Env.WheelDir,
		Board: mover.BoardPath(r.Memory), Log: file, GPUs: m.gpus, Size: m.size, Soon: givenBackIn, Changes: m.changes, Reloads: m.reloads,
		Spared: notYetSpared[l.Provider]}, play.Bound)
}

// givenBackIn is longer than soon: the agents keep all processors busy.
var givenBackIn = soon + testenv.Patient(time.Second)

// Judge implements play.Others.
func (m *moving) Judge(p *history.Params) {
	p.Memory, p.Soon, p.Settle = "VRAM", givenBackIn, testenv.Patient(2*time.Second)
}

// play plays a round: for the first half of it nobody is disturbed.
func (m *moving) play(l *killLoop, length time.Duration) {
	l.Setenv = append(l.Setenv, "GORAIL_CUDA_PATH="+m.cuda)
	l.Open()
	l.Pause(length / 2)
	m.quiet(l)
	for end := time.Now().Add(length / 2); time.Now().Before(end); {
		l.fault()
		l.Pause(time.Duration(500+l.Rng.IntN(4000)) * time.Millisecond)
	}
	m.checkDead(l)
	l.Close()
}

// dead is a killed agent's memory.
type dead struct {
	history.Engine
	files []uint64
	since int64
}

// Died implements play.Others: it notes the memory of a killed agent.
func (m *moving) Died(l *play.Round, r *play.Role) {
	board, err := mover.OpenBoard(mover.BoardPath(r.Memory))
	require.NoError(l.T, err)
	m.dead = append(m.dead, dead{r.Engine, board.Files(), history.Now()})
	require.NoError(l.T, board.Close())
}

// checkDead notes who holds memory of the dead, a while after the last has died and the last that was stopped has continued.
func (m *moving) checkDead(l *killLoop) {
	if len(m.dead) == 0 {
		return
	}
	l.Mend(time.Time{})
	l.Pause(givenBackIn + 100*time.Millisecond)
	for _, d := range m.dead {
		for _, r := range l.Actors {
			if n, err := held.By(r.Pid(), d.files...); err == nil && n > 0 {
				require.NoError(l.t, l.Log.Add(history.Event{By: d.Engine, Kind: history.Held, To: r.Engine, Wrong: int64(n), Since: d.since, Text: "memory of the dead"}))
			}
		}
	}
}

// quiet lets one agent unmap its GPU memory while nobody does anything else. What the GPUs then lack is what peers hold: for real GPUs.
func (m *moving) quiet(l *killLoop) {
	if m.app == nil {
		return
	}
	t := l.t
	for _, r := range l.Actors {
		l.Do(r, "Run", false)
	}
	l.Settle()
	before := make([]uint64, m.gpus)
	for gpu := range before {
		before[gpu] = m.app.Left(gpu)
	}
	r := l.Actors[l.Rng.IntN(len(l.Actors))]
	since := history.Now()
	asleep, err := subprocess.Call[mover.Asleep](r.Client, "Sleep", false, play.Bound)
	require.NoError(t, err)
	time.Sleep(givenBackIn)
	for gpu, bytes := range asleep.Bytes {
		got := int64(m.app.Left(gpu) - before[gpu])
		t.Logf("%s unmapped %d MiB of GPU %d, %d MiB came back", r, bytes>>20, gpu, got>>20)
		if rest := int64(bytes) - got; rest > int64(m.size/2) { // less may be buffers that somebody has made meanwhile
			for _, other := range l.Actors {
				if other != r { // one of them, at least
					require.NoError(t, l.Log.Add(history.Event{By: r.Engine, Kind: history.Held, To: other.Engine, Wrong: rest, Since: since, Text: "on a GPU"}))
					break
				}
			}
		}
	}
	l.Do(r, "Wake", false)
	for _, r := range l.Actors {
		l.Do(r, "Run", true)
	}
}
