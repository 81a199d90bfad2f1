package inside

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// failQPs moves a process's queue pairs of a device to the state ERR, as a device does with a queue pair that it cannot go on with. Their
// requests end with IBV_WC_WR_FLUSH_ERR. began is before the first one: the peer's end learns nothing. The search for queue pairs takes
// tens of milliseconds in a guest, so it comes first.
func failQPs(t testing.TB, pid int, device string) (began time.Time) {
	t.Helper()
	const handles = 256 // of a process's objects of a device: more than the tests' agents have
	type queuePair struct {
		fd     int
		handle uint32
	}
	var all []queuePair
	for _, fd := range contexts(t, pid, device) {
		defer unix.Close(fd)
		for handle := range uint32(handles) {
			if modifyState(fd, handle, 0) == nil {
				all = append(all, queuePair{fd, handle})
			}
		}
	}
	require.NotEmpty(t, all, "process %d has no queue pair of %s", pid, device)
	began = time.Now()
	failed := 0
	for _, q := range all {
		if modifyState(q.fd, q.handle, maskState) == nil {
			failed++
		}
	}
	require.NotZero(t, failed, "process %d closed its queue pairs of %s meanwhile", pid, device)
	return began
}

// contexts returns descriptors of ours for a process's contexts of a device (ibv_open_device).
func contexts(t testing.TB, pid int, device string) (found []int) {
	t.Helper()
	pidfd, err := unix.PidfdOpen(pid, 0)
	require.NoError(t, err)
	defer unix.Close(pidfd)
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range list {
		file, _ := os.Readlink(filepath.Join(dir, entry.Name()))
		if !strings.HasPrefix(file, "/dev/infiniband/uverbs") {
			continue
		}
		of, err := os.ReadFile(filepath.Join("/sys/class/infiniband_verbs", filepath.Base(file), "ibdev"))
		require.NoError(t, err)
		if strings.TrimSpace(string(of)) != device {
			continue
		}
		n, err := strconv.Atoi(entry.Name())
		require.NoError(t, err)
		fd, err := unix.PidfdGetfd(pidfd, n, 0)
		require.NoError(t, err)
		found = append(found, fd)
	}
	return found
}

// modifyQP is struct ib_uverbs_modify_qp.
type modifyQP struct {
	paths  [64]byte
	handle uint32
	mask   uint32
	other  [24]byte
	state  uint8
	rest   [15]byte
}

// attr is struct ib_uverbs_attr: the data itself, or a pointer to it if it has more than 8 bytes.
type attr struct {
	id, len, flags, reserved uint16
	data                     uint64
}

// invoke is struct ib_uverbs_ioctl_hdr with the attributes of UVERBS_METHOD_INVOKE_WRITE.
type invoke struct {
	length, object, method, attrs uint16
	reserved                      uint64
	driver, reserved2             uint32
	command, in                   attr
}

// maskState is IBV_QP_STATE.
const maskState = 1

// modifyState implements ibv_modify_qp to ERR, or with mask 0 an ibv_modify_qp that changes nothing. libibverbs can do that only in the
// process that has the queue pair. With a handle that is none of a queue pair the kernel returns an error.
func modifyState(fd int, handle, mask uint32) error {
	const (
		ioctl        = 0xc0181b01 // RDMA_VERBS_IOCTL
		mandatory    = 1          // UVERBS_ATTR_F_MANDATORY
		coreIn       = 0          // UVERBS_ATTR_CORE_IN
		writeCommand = 2          // UVERBS_ATTR_WRITE_CMD
		modify       = 26         // IB_USER_VERBS_CMD_MODIFY_QP
		rxe          = 14         // RDMA_DRIVER_RXE
		stateError   = 6          // IBV_QPS_ERR
	)
	qp := &modifyQP{handle: handle, mask: mask, state: stateError}
	call := &invoke{length: uint16(unsafe.Sizeof(invoke{})), attrs: 2, driver: rxe,
		command: attr{id: writeCommand, len: 8, flags: mandatory, data: modify},
		in:      attr{id: coreIn, len: uint16(unsafe.Sizeof(*qp)), flags: mandatory, data: uint64(uintptr(unsafe.Pointer(qp)))}}
	var pin runtime.Pinner
	pin.Pin(qp)
	defer pin.Unpin()
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ioctl, uintptr(unsafe.Pointer(call)))
	runtime.KeepAlive(qp)
	if errno != 0 {
		return errno
	}
	return nil
}
