package gpu

import "time"

// SetOwnPID changes what this package takes for this process's number.
func SetOwnPID(pid int) (undo func()) {
	was := ownPID
	ownPID = func() int { return pid }
	return func() { ownPID = was }
}

// SetNVMLPatience sets the bound of Fabric, and returns what sets it back.
func SetNVMLPatience(d time.Duration) (back func()) {
	was := nvmlPatience
	nvmlPatience = d
	return func() { nvmlPatience = was }
}
