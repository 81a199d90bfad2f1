package host

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Ambiguous reports that a user id may stand for several users: all users that are not mapped in this user namespace
// show the overflow id.
func Ambiguous(uid uint32) bool {
	if uid != overflowUser() {
		return false
	}
	n, _ := mapped()
	return n != ^uint32(0) // a full map: every user has an id of its own here
}

// Unmapped is the id of all users without a number in this user namespace, where there are such users.
func Unmapped() []uint32 {
	if uid := overflowUser(); Ambiguous(uid) {
		return []uint32{uid}
	}
	return nil
}

// mayBeRoot reports that a user id may stand for the root of another user namespace, whose folders all paths begin with. Without /proc nobody
// knows, and it is a user as others are.
func mayBeRoot(uid uint32) bool {
	_, known := mapped()
	return known && Ambiguous(uid)
}

// mapped is how many users the first line of this user namespace's map has.
func mapped() (n uint32, known bool) {
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return 0, false
	}
	var inner, outer uint32
	if _, err := fmt.Fscan(bytes.NewReader(b), &inner, &outer, &n); err != nil {
		return 0, true // nobody is mapped yet
	}
	return n, true
}

// overflowUser is the id of users that are not mapped in a user namespace: of the whole system, so it is read once.
var overflowUser = sync.OnceValue(func() uint32 {
	if b, err := os.ReadFile("/proc/sys/kernel/overflowuid"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32); err == nil {
			return uint32(n)
		}
	}
	return 65534
})

// Owners returns the users, other than root, who own a file or a folder above it. They decide already what somebody gets who runs the file.
func Owners(path string) (list []uint32) {
	for {
		var s unix.Stat_t
		if unix.Stat(path, &s) == nil && s.Uid != 0 && !slices.Contains(list, s.Uid) {
			list = append(list, s.Uid)
		}
		if path == "/" || path == "." || path == "" {
			return list
		}
		path = filepath.Dir(path)
	}
}
