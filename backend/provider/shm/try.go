package shm

import "gorail/backend/provider/shm/ipc"

// TryFolder makes a socket in the folder of Options.LocalDir, as a rail does, and removes it. path is the folder; "": the
// option wants none. The error is an *ipc.Error that says what to do.
func TryFolder(o Options) (path string, err error) {
	switch path = o.LocalDir; path {
	case "", NoDir:
		return "", nil
	case AutoDir:
		path = DefaultDir
	}
	f, err := ipc.OpenFolder(path)
	if err != nil {
		return path, err
	}
	defer f.Close()
	users := ipc.SameUser
	if o.AnyUser {
		users = ipc.AnyUser
	}
	l, err := f.Listen(1, users)
	if err != nil {
		return path, err
	}
	l.Close()
	return path, nil
}
