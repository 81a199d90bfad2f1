package gpu

// SetOwnPID changes what this package takes for this process's number.
func SetOwnPID(pid int) (undo func()) {
	was := ownPID
	ownPID = func() int { return pid }
	return func() { ownPID = was }
}
