package gpu

/*
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// NVML's interface in our own words, for drivers from 535 on (nvmlDeviceGetGpuFabricInfo), better 545 (...InfoV).
typedef struct nv_info2 { // nvmlGpuFabricInfo_v2_t
    unsigned version;
    uint8_t cluster[16];
    int status; // nvmlReturn_t, valid once the state is COMPLETED
    unsigned clique;
    uint8_t state;
    unsigned health;
} nv_info2;
typedef struct nv_info1 { // nvmlGpuFabricInfo_t
    uint8_t cluster[16];
    int status;
    unsigned clique;
    uint8_t state;
} nv_info1;
_Static_assert(sizeof(nv_info2) == 36 && sizeof(nv_info1) == 28, "NVML's layout");

typedef struct nv_gpu {
    char uuid[96];
    nv_info2 info;
    int rc; // nvmlReturn_t of the question
} nv_gpu;

// Returns the number of GPUs, at most most; -1: no such library, -2: it lacks calls, -3: a call failed: *rc.
static int nv_gpus(const char *path, nv_gpu *out, unsigned most, int *rc)
{
    void *dl = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (!dl)
        return -1;
    int (*init)(void) = (int (*)(void))dlsym(dl, "nvmlInit_v2");
    int (*end)(void) = (int (*)(void))dlsym(dl, "nvmlShutdown");
    int (*count)(unsigned *) = (int (*)(unsigned *))dlsym(dl, "nvmlDeviceGetCount_v2");
    int (*get)(unsigned, void **) = (int (*)(unsigned, void **))dlsym(dl, "nvmlDeviceGetHandleByIndex_v2");
    int (*uuid)(void *, char *, unsigned) = (int (*)(void *, char *, unsigned))dlsym(dl, "nvmlDeviceGetUUID");
    int (*info2)(void *, nv_info2 *) = (int (*)(void *, nv_info2 *))dlsym(dl, "nvmlDeviceGetGpuFabricInfoV");
    int (*info1)(void *, nv_info1 *) = (int (*)(void *, nv_info1 *))dlsym(dl, "nvmlDeviceGetGpuFabricInfo");
    unsigned n = 0;
    if (!init || !end || !count || !get || !uuid || (!info2 && !info1))
        return -2;
    if ((*rc = init()) != 0)
        return -3;
    if ((*rc = count(&n)) == 0)
        for (unsigned i = 0; i < n && i < most; i++) {
            void *device = NULL;
            nv_gpu *g = &out[i];
            memset(g, 0, sizeof(*g));
            g->info.version = sizeof(nv_info2) | 2u << 24;
            if ((g->rc = get(i, &device)) != 0 || (g->rc = uuid(device, g->uuid, sizeof(g->uuid) - 1)) != 0)
                continue;
            g->rc = info2 ? info2(device, &g->info) : -1;
            if (g->rc && info1) {
                nv_info1 old = {0};
                if ((g->rc = info1(device, &old)) == 0) {
                    memcpy(g->info.cluster, old.cluster, 16);
                    g->info.status = old.status;
                    g->info.clique = old.clique;
                    g->info.state = old.state;
                }
            }
        }
    int failed = *rc;
    (void)end();
    return failed ? -3 : (int)(n < most ? n : most);
}
*/
import "C"

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"
	"unsafe"
)

// FabricState is an nvmlGpuFabricState_t: how far the GPU has joined NVLink between hosts.
type FabricState uint8

// The states.
const (
	FabricNone    FabricState = iota // the GPU has no such fabric
	FabricNotYet                     // it has not begun to join
	FabricJoining                    // it joins
	FabricJoined
)

func (s FabricState) String() string {
	if int(s) < 4 {
		return [...]string{"not supported", "not started", "in progress", "completed"}[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// FabricInfo is what NVML says of a GPU and NVLink between hosts.
type FabricInfo struct {
	UUID    [16]byte
	State   FabricState
	Status  int // nvmlReturn_t of joining; 0: success
	Cluster [16]byte
	Clique  uint32
	Asked   int // nvmlReturn_t of the question; not 0: nothing is known
}

// Domain names what GPUs must have in common to map each other's memory: cluster UUID and clique. "": the GPU is in none. A machine whose NVLink
// ends in itself has a cluster of zeros.
func (f *FabricInfo) Domain() string {
	if f.Asked != 0 || f.State != FabricJoined || f.Status != 0 || f.Cluster == ([16]byte{}) {
		return ""
	}
	return fmt.Sprintf("%x/%d", f.Cluster, f.Clique)
}

// ErrNoNVML: NVML's library is not there.
var ErrNoNVML = errors.New("NVML's library (libnvidia-ml.so.1) was not found")

// NVMLPath is NVML's library beside the driver's, if that has a path; else the loader finds it.
func NVMLPath(cuda string) string {
	const name = "libnvidia-ml.so.1"
	if strings.Contains(cuda, "/") {
		if beside := filepath.Join(filepath.Dir(cuda), name); exists(beside) {
			return beside
		}
	}
	return name
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// fabrics keeps NVML's answers for a while, by path: the engines of a process ask once.
var fabrics struct {
	sync.Mutex
	by map[string]*fabricAnswer
}

type fabricAnswer struct {
	at   time.Time
	over chan struct{} // closed when NVML has answered; then the rest is valid
	all  []FabricInfo
	err  error
}

// nvmlPatience bounds the wait for NVML. GPUs without persistence mode take seconds to begin.
var nvmlPatience = 15 * time.Second

// ErrNVMLStuck: NVML has been asked, and does not answer.
var ErrNVMLStuck = errors.New("NVML does not answer: does nvidia-smi end? dmesg | grep -i -e xid -e nvrm shows what holds the driver")

// fabricKept is short beside the seconds in which a GPU joins.
const fabricKept = 5 * time.Second

// Fabric asks NVML about all GPUs. It makes no context. The caller changes nothing in the list. ErrNVMLStuck: NVML does not answer. A call that is stuck
// keeps its thread, and is the only one. Implements nvmlInit, nvmlDeviceGetGpuFabricInfoV.
func Fabric(path string) ([]FabricInfo, error) {
	a := fabricOf(path)
	select {
	case <-a.over:
		return a.all, a.err
	case <-time.After(time.Until(a.at.Add(nvmlPatience))):
		return nil, ErrNVMLStuck
	}
}

// fabricOf returns the last answer if it is fresh, or is to come; else a new question's.
func fabricOf(path string) *fabricAnswer {
	fabrics.Lock()
	defer fabrics.Unlock()
	if a := fabrics.by[path]; a != nil && (time.Since(a.at) <= fabricKept || !a.answered()) {
		return a
	}
	a := &fabricAnswer{at: time.Now(), over: make(chan struct{})}
	if fabrics.by == nil {
		fabrics.by = map[string]*fabricAnswer{}
	}
	fabrics.by[path] = a
	go func() {
		defer close(a.over)
		a.all, a.err = askFabric(path)
	}()
	return a
}

func (a *fabricAnswer) answered() bool {
	select {
	case <-a.over:
		return true
	default:
		return false
	}
}

func askFabric(path string) ([]FabricInfo, error) {
	const most = 64
	gpus := make([]C.nv_gpu, most)
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var rc C.int
	runtime.LockOSThread()
	n := C.nv_gpus(cpath, &gpus[0], most, &rc)
	runtime.UnlockOSThread()
	switch n {
	case -1:
		return nil, ErrNoNVML
	case -2:
		return nil, fmt.Errorf("%s knows nothing of NVLink between hosts: its driver is older than 535", path)
	case -3:
		return nil, fmt.Errorf("NVML: error %d (nvmlReturn_t)", int(rc))
	}
	all := make([]FabricInfo, n)
	for i := range all {
		g := &gpus[i]
		f := &all[i]
		f.State, f.Status, f.Clique, f.Asked = FabricState(g.info.state), int(g.info.status), uint32(g.info.clique), int(g.rc)
		f.Cluster = *(*[16]byte)(unsafe.Pointer(&g.info.cluster))
		text := strings.ReplaceAll(strings.TrimPrefix(C.GoString(&g.uuid[0]), "GPU-"), "-", "")
		b, _ := hex.DecodeString(text)
		copy(f.UUID[:], b)
	}
	return all, nil
}

// DefaultIMEX is the folder of the device nodes of IMEX channels. A process that has none can neither make nor map fabric handles.
const DefaultIMEX = "/dev/nvidia-caps-imex-channels"

// MayReachHosts reports that NVLink may lead to other hosts here: there is a folder of IMEX channels, or a GPU of a rack (GH200, GB200, GB300). It reads
// files alone, below root.
func MayReachHosts(root, channels string) bool {
	if _, err := os.Stat(filepath.Join(root, channels)); err == nil {
		return true
	}
	list, _ := filepath.Glob(filepath.Join(root, "proc/driver/nvidia/gpus/*/information"))
	for _, path := range list {
		text, err := os.ReadFile(path)
		if err == nil && rackModel.Match(text) {
			return true
		}
	}
	return false
}

// rackModel matches the driver's line "Model: NVIDIA GB200".
var rackModel = regexp.MustCompile(`(?m)^Model:\s+(NVIDIA )?G[BH]\d`)

// Channels lists the IMEX channels in a folder, and those among them that this process may open. Implements open.
func Channels(dir string) (all, usable []string) {
	list, _ := filepath.Glob(filepath.Join(dir, "channel*"))
	for _, path := range list {
		name := filepath.Base(path)
		all = append(all, name)
		if f, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
			_ = f.Close()
			usable = append(usable, name)
		}
	}
	return all, usable
}
