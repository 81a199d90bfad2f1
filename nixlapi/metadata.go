package nixlapi

// Metadata implements nixl_capi_get_local_md: connection info and all regions.
func (a *Agent) Metadata() ([]byte, error) {
	md, s := cLocalMD(a.h)
	return md, s.Err("get_local_md")
}

// PartialMetadata implements nixl_capi_get_local_partial_md for the given regions. Without regions the result is only
// the connection info.
func (a *Agent) PartialMetadata(mem Mem, d []Desc, b *Backend) ([]byte, error) {
	var md []byte
	s := withRegList(mem, d, "", func(l ptr) Status {
		return withOpt(b, nil, false, func(o ptr) (s Status) {
			md, s = cPartialMD(a.h, l, o)
			return s
		})
	})
	return md, s.Err("get_local_partial_md")
}

// ConnInfo returns the partial metadata of no region.
func (a *Agent) ConnInfo() ([]byte, error) { return a.PartialMetadata(DRAM, nil, nil) }

// Load implements nixl_capi_load_remote_md and returns the remote's name.
func (a *Agent) Load(md []byte) (string, error) {
	name, s := cLoadMD(a.h, md)
	return name, s.Err("load_remote_md")
}

// Invalidate implements nixl_capi_invalidate_remote_md.
func (a *Agent) Invalidate(remote string) error {
	return cInvalidate(a.h, remote).Err("invalidate_remote_md")
}

// Knows implements nixl_capi_check_remote_md with no ranges. The agent itself forgets a remote only after
// NIXL_ERR_REMOTE_DISCONNECT. The C API does not distinguish that status from other errors, but Knows does.
func (a *Agent) Knows(remote string) bool { return cCheckRemote(a.h, remote, nil) == Success }

// Connect implements nixl_capi_agent_make_connection.
func (a *Agent) Connect(remote string, b *Backend) error {
	return withOpt(b, nil, false, func(o ptr) Status {
		return cConnect(a.h, remote, o)
	}).Err("agent_make_connection")
}
